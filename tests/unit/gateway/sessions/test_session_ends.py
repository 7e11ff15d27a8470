"""What ends a session or a channel, and what comes after."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from headrace_gateway.sessions.limits import SessionLimits
from headrace_proto.v1 import session_pb2 as wire
from support.clocks.waiting import LIMIT
from support.scripted.engine_answers import RUNNING
from unit.gateway.conftest import QUICK, until
from unit.gateway.failures import carried, failure_of

NOT_FOUND, UNAVAILABLE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE
INVALID = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


@pytest.fixture
async def front(world, engine):
    return await world.gateway(e1=engine, limits=QUICK, poll_interval=0.05)


class TestLostEngines:
    async def test_an_engine_that_comes_back_goes_on_where_the_client_was(self, world, front, engine, join):
        """Its channels end with ENGINE_UNREACHABLE and a time to try again; those of other engines go on."""
        handle, log = engine.log(tokens=[1, 2])
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].tokens == [1, 2])
        await engine.stop()
        await client.until(lambda: client.of[channel].error)
        failure = carried(client.of[channel].error)
        assert failure.reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
        assert failure.retry_seconds > 0
        while_down = await client.read(handle, 2)
        await client.until(lambda: client.of[while_down].error)
        assert carried(client.of[while_down].error).reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
        await engine.start()
        await front.seen("e1")
        again = await client.read(handle, 2)
        await client.until(lambda: client.of[again].attached)
        engine.produce(log, 3, end=True)
        assert await client.whole(again) == [3]
        assert len(engine.sessions) == 2

    async def test_an_engine_that_restarted_has_lost_the_handle(self, front, engine, join):
        handle, _ = engine.log(tokens=[1])
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].tokens)
        await engine.stop()
        await client.until(lambda: client.of[channel].error)
        engine.restart_as_new()
        await engine.start()
        await front.seen("e1")
        again = await client.read(handle, 1)
        await client.until(lambda: client.of[again].error)
        assert carried(client.of[again].error).reported == (NOT_FOUND, "ENGINE_LOST")

    async def test_other_engines_go_on(self, world, engine, join):
        other = await world.engine(smol=RUNNING)
        front = await world.gateway(e1=engine, e2=other)
        (lost, _), (kept, log) = engine.log("e1", tokens=[1]), other.log("e2", tokens=[2])
        client = await join(front)
        channels = [await client.read(lost), await client.read(kept)]
        await client.until(lambda: all(client.of[channel].tokens for channel in channels))
        await engine.stop()
        await client.until(lambda: client.of[channels[0]].error)
        other.produce(log, 3, end=True)
        assert await client.whole(channels[1]) == [2, 3]

    async def test_an_engine_that_answers_no_ping_is_lost(self, world, engine, join):
        """The stream stands, but nobody is behind it."""
        engine.answers_pings, engine.ping_timeout = False, 0.05
        front = await world.gateway(e1=engine, limits=QUICK)
        handle, _ = engine.log()
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].error)
        assert carried(client.of[channel].error).reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")


class TestPings:
    """Engines say how often they are to be pinged as a stream opens."""

    @pytest.fixture(autouse=True)
    def eager(self, engine):
        engine.ping_interval = 0.01

    async def test_engines_are_pinged_as_often_as_they_ask_for(self, engine, front):
        await until(engine, lambda: engine.sessions and len(engine.side.pings) >= 3)


class TestGone:
    """A client that is gone is detached at once; its lease begins."""

    @pytest.fixture
    async def reading(self, front, engine, join):
        handle, _ = engine.log()
        client = await join(front)
        await client.read(handle)
        await until(engine, lambda: engine.sessions and engine.side.channels)
        return client

    async def detached(self, front, engine):
        await until(engine, lambda: engine.side.detached == [1])
        await front.gateway.close()
        assert not front.gateway.sessions.live

    async def test_a_broken_stream(self, front, engine, reading):
        reading.call.cancel()
        await self.detached(front, engine)

    async def test_a_lost_connection(self, front, engine, reading):
        await reading.channel.close()
        await self.detached(front, engine)

    async def test_a_client_that_says_it_is_done(self, front, engine, reading):
        await reading.call.done_writing()
        while (message := await reading.call.read()) is not grpc.aio.EOF:
            reading.take(message)
        assert await reading.call.code() is grpc.StatusCode.OK
        await self.detached(front, engine)

    async def test_a_silent_client(self, world, engine, join):
        engine.ping_timeout = LIMIT  # that stream is to stand
        front = await world.gateway(e1=engine, limits=SessionLimits(ping_timeout=1.0))
        await until(engine, lambda: engine.sessions and engine.side.wants_load)
        client = await join(front, opened=False)
        await client.say(options=wire.SessionOptions(), attach=[client.attach(engine.log()[0])])
        failure = await client.failure()
        assert failure.reported == (UNAVAILABLE, "SESSION_SILENT")
        await self.detached(front, engine)

    @pytest.mark.parametrize(
        ("message", "field"),
        [
            ({"options": wire.SessionOptions()}, "options"),
            ({"attach": [wire.Attach(channel=1, handle="e1/x/1")]}, "attach[0].channel"),
            ({"acks": [wire.Ack(channel=1, position=1)]}, "acks[0].position"),
        ],
    )
    async def test_a_client_that_breaks_the_rules(self, front, engine, join, reading, message, field):
        """It is told the field; other sessions go on."""
        other = await join(front)
        handle, log = engine.log()
        channel = await other.read(handle)
        await reading.say(**message)
        failure = await reading.failure()
        assert (failure.reported, failure.fields) == (INVALID, [field])
        engine.produce(log, 1, end=True)
        assert await other.whole(channel) == [1]
        await until(engine, lambda: engine.side.detached == [1])


async def test_a_rule_breaking_first_message_leaves_nobody_attached(front, engine, join):
    """What it attached before that is detached."""
    other = await join(front)
    await other.read(engine.log()[0])
    await until(engine, lambda: engine.sessions and engine.side.channels)
    client = await join(front, opened=False)
    attach = [wire.Attach(channel=1, handle=engine.log()[0]), wire.Attach(channel=1, handle=engine.log()[0])]
    await client.say(options=wire.SessionOptions(), attach=attach)
    assert (await client.failure()).fields == ["attach[1].channel"]
    await until(engine, lambda: engine.side.detached == [2])


class TestDraining:
    async def test_running_sequences_are_read_to_their_end(self, front, engine, join):
        """New sessions are refused, new attaches on old ones are not; then the session ends with DRAINING."""
        handle, log = engine.log()
        client, idle = await join(front), await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].attached)
        draining = asyncio.create_task(front.gateway.drain())
        assert (await idle.failure()).reported == (UNAVAILABLE, "DRAINING")
        refused = await join(front, opened=False)
        assert (await refused.failure()).reported == (UNAVAILABLE, "DRAINING")
        second, _ = engine.log(tokens=[9], ended=True)
        assert await client.whole(await client.read(second)) == [9]
        engine.produce(log, 1, 2, end=True)
        assert (await client.failure()).reported == (UNAVAILABLE, "DRAINING")
        assert client.of[channel].tokens == [1, 2]
        assert client.closing
        await draining

    async def test_a_client_that_does_not_leave_is_left(self, world, engine, join):
        front = await world.gateway(e1=engine, limits=SessionLimits(leave_seconds=0.05))
        client = await join(front)
        draining = asyncio.create_task(front.gateway.drain())
        await client.until(lambda: client.closing)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.until(lambda: False)
        assert failure_of(caught.value).reported == (UNAVAILABLE, "DRAINING")
        await draining

    async def test_a_client_that_has_left_keeps_no_timer(self, world, engine, join, monkeypatch):
        front = await world.gateway(e1=engine, limits=SessionLimits(leave_seconds=987.0))
        timers, loop = [], asyncio.get_running_loop()
        later = loop.call_later

        def call_later(delay, *rest, **more):
            timer = later(delay, *rest, **more)
            timers.extend([timer] if delay == 987.0 else [])
            return timer

        monkeypatch.setattr(loop, "call_later", call_later)
        client = await join(front)
        draining = asyncio.create_task(front.gateway.drain())
        assert (await client.failure()).reported == (UNAVAILABLE, "DRAINING")
        await draining
        (timer,) = timers
        assert timer.cancelled()

    async def test_a_gateway_leaves_an_engine_that_has_nothing_more_to_say(self, front, engine, join):
        """It ends its half, and reads until the engine has ended the stream; its clients keep what was told."""
        handle, _ = engine.log(tokens=[1, 2])
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].tokens == [1, 2])
        engine.take_leave()
        await until(engine, lambda: not engine.side.open)
        await client.until(lambda: client.of[channel].error)
        assert carried(client.of[channel].error).reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
