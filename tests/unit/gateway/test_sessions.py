"""Session streams through a real gateway, to real servers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from headrace.v1 import engine_service_pb2 as facts_wire
from headrace.v1 import session_pb2 as wire
from headrace_gateway.session_limits import SessionLimits
from unit.gateway.conftest import until
from unit.gateway.failures import carried
from unit.gateway.scripted_answers import RUNNING, refuse
from unit.gateway.session_client import SessionClient

NOT_FOUND, UNAVAILABLE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE
INVALID = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
QUICK = SessionLimits(reopen_seconds=0.01, reopen_at_most=0.02)


@pytest.fixture
async def engine(world):
    return await world.engine(smol=RUNNING)


@pytest.fixture
async def front(world, engine):
    return await world.gateway(e1=engine, limits=QUICK, poll_interval=0.05)


@pytest.fixture
async def join():
    """Opens sessions, and ends them with the test."""
    async with AsyncExitStack() as stack:

        async def begin(front, opened=True):
            client = await stack.enter_async_context(SessionClient(str(front.gateway.address)))
            return await client.begin() if opened else client

        yield begin


class TestOpening:
    async def test_a_session_opens_with_the_gateways_name_and_instance(self, front, join):
        info = await front.facts.GetServerInfo(facts_wire.GetServerInfoRequest())
        (opened,) = (await join(front)).opened
        assert (opened.server, opened.instance_id) == (info.name, info.instance_id)
        assert (opened.ping_interval.seconds, opened.ping_timeout.seconds) == (10, 30)

    async def test_a_ping_comes_back(self, front, join):
        client = await join(front)
        await client.say(ping=wire.Ping(number=7))
        await client.until(lambda: client.pongs == [7])

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (None, INVALID),
            (wire.SessionOptions(load=True), (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")),
            (
                wire.SessionOptions(cache_events=wire.CacheEventsOptions()),
                (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED"),
            ),
        ],
    )
    async def test_options_come_first_and_ask_for_nothing_of_gateways(self, front, join, options, told):
        client = await join(front, opened=False)
        await client.say(options=options, ping=wire.Ping(number=1))
        failure = await client.failure()
        assert failure.told == told
        assert failure.facts["field"].startswith("options")

    async def test_a_session_without_a_message_is_refused(self, front, join):
        client = await join(front, opened=False)
        await client.call.done_writing()
        assert (await client.failure()).fields == ["options"]


class TestReading:
    async def test_a_sequence_is_told_to_its_end(self, front, engine, join):
        handle, log = engine.log(tokens=[1, 2, 3])
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].tokens == [1, 2, 3])
        engine.produce(log, 4, 5, end=True)
        assert await client.whole(channel) == [1, 2, 3, 4, 5]

    async def test_many_clients_share_one_stream_to_each_engine(self, world, engine, join):
        """Each client gets its own rows, under its own channel numbers, from both engines."""
        other = await world.engine(smol=RUNNING)
        front = await world.gateway(e1=engine, e2=other)
        clients = [await join(front) for _ in range(4)]
        expected = {}
        for number, client in enumerate(clients):
            for name, scripted in (("e1", engine), ("e2", other)):
                for each in range(3):
                    handle, log = scripted.log(name)
                    expected[client, await client.read(handle)] = (scripted, log, 100 * number + each)
        await until(engine, lambda: engine.sessions and len(engine.side.channels) == 12)
        await until(other, lambda: other.sessions and len(other.side.channels) == 12)
        for scripted, log, token in expected.values():
            scripted.produce(log, *range(token, token + 50), end=True)
        for (client, channel), (_, _, token) in expected.items():
            assert await client.whole(channel) == list(range(token, token + 50))
        assert (len(engine.sessions), len(other.sessions)) == (1, 1)

    async def test_a_step_is_one_message_to_each_client(self, front, engine, join):
        client = await join(front)
        logs = []
        for _ in range(8):
            handle, log = engine.log()
            logs.append(log)
            await client.read(handle)
        await client.until(lambda: all(reading.attached for reading in client.of.values()))
        before = len(client.sizes)
        for log in logs:
            log.tokens.append(5)
        engine.note()
        await client.until(lambda: any(reading.tokens for reading in client.of.values()))
        assert len(client.sizes) == before + 1
        assert all(reading.tokens == [5] for reading in client.of.values())

    async def test_reading_begins_where_the_client_says(self, front, engine, join):
        handle, _ = engine.log(tokens=[1, 2, 3], ended=True)
        client = await join(front)
        assert await client.whole(await client.read(handle, 2)) == [3]

    async def test_acks_move_the_window_at_the_engine(self, front, engine, join):
        handle, _ = engine.log(tokens=list(range(10)), ended=True)
        client = await join(front)
        channel = await client.read(handle, window=4)
        await client.until(lambda: client.of[channel].window is not None)
        assert client.of[channel].tokens == [0, 1, 2, 3]
        assert (client.of[channel].window.limit, client.of[channel].end.position) == (4, 10)
        assert await client.whole(channel) == list(range(10))

    async def test_a_detach_reaches_the_engine_and_touches_no_other(self, front, engine, join):
        (one, _), (two, log) = engine.log(), engine.log()
        client = await join(front)
        channels = [await client.read(one), await client.read(two)]
        await client.say(detach=[client.detach(channels[0])])
        await until(engine, lambda: engine.sessions and engine.side.detached)
        engine.produce(log, 1, end=True)
        assert await client.whole(channels[1]) == [1]
        assert engine.side.detached == [engine.side.attaches[0].channel]

    async def test_any_gateway_serves_any_handle(self, world, front, engine, join):
        """A client that lost its gateway goes on at another one from its position."""
        handle, log = engine.log(tokens=[1, 2])
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].tokens == [1, 2])
        await front.gateway.close()
        assert (await client.failure()).code is UNAVAILABLE
        again = await join(await world.gateway(e1=engine))
        channel = await again.read(handle, 2)
        engine.produce(log, 3, end=True)
        assert await again.whole(channel) == [3]


class TestHandleErrors:
    async def test_each_failing_handle_is_an_item_and_touches_no_other(self, front, engine, join):
        good, _ = engine.log(tokens=[1], ended=True)
        lost = f"e1/before/{'0' * 32}"
        released = f"e1/{engine.instance_id}/{'f' * 32}"
        client = await join(front)
        bad = {
            await client.read("no handle"): (NOT_FOUND, "UNKNOWN_REQUEST"),
            await client.read("e9/x/1"): (NOT_FOUND, "UNKNOWN_ENGINE"),
            await client.read(lost): (NOT_FOUND, "ENGINE_LOST"),
            await client.read(released): (NOT_FOUND, "UNKNOWN_REQUEST"),
            await client.read(good, 5): (grpc.StatusCode.OUT_OF_RANGE, "POSITION_OUT_OF_RANGE"),
        }
        channel = await client.read(good)
        assert await client.whole(channel) == [1]
        await client.until(lambda: all(client.of[each].error for each in bad))
        assert {each: carried(client.of[each].error).told for each in bad} == bad
        told = carried(client.of[3].error)
        assert told.facts["handle"] == lost

    async def test_a_release_while_reading_ends_the_channel(self, front, engine, join):
        handle, log = engine.log(tokens=[1])
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].tokens)
        log.released = True
        engine.note()
        await client.until(lambda: client.of[channel].error)
        assert carried(client.of[channel].error).told == (NOT_FOUND, "UNKNOWN_REQUEST")

    async def test_an_engine_without_sessions_is_told_as_it_answers(self, front, engine, join):
        async def refusing(requests, context):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "NOT_SUPPORTED")

        engine.script["Session"] = refusing
        handle, _ = engine.log()
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].error)
        assert carried(client.of[channel].error).told == (grpc.StatusCode.INVALID_ARGUMENT, "NOT_SUPPORTED")


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
        assert failure.told == (UNAVAILABLE, "ENGINE_UNREACHABLE")
        assert failure.retry_seconds > 0
        while_down = await client.read(handle, 2)
        await client.until(lambda: client.of[while_down].error)
        assert carried(client.of[while_down].error).told == (UNAVAILABLE, "ENGINE_UNREACHABLE")
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
        assert carried(client.of[again].error).told == (NOT_FOUND, "ENGINE_LOST")

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
        engine.answers_pings = False
        front = await world.gateway(e1=engine, limits=SessionLimits(ping_timeout=0.2))
        handle, _ = engine.log()
        client = await join(front)
        channel = await client.read(handle)

        async def stay():
            while True:
                await client.say(ping=wire.Ping(number=1))
                await asyncio.sleep(0.05)

        staying = asyncio.create_task(stay())
        await client.until(lambda: client.of[channel].error)
        staying.cancel()
        assert carried(client.of[channel].error).told == (UNAVAILABLE, "ENGINE_UNREACHABLE")

    async def test_engines_are_pinged_as_often_as_they_ask_for(self, front, engine, join):
        engine.ping_interval = 0.01
        handle, _ = engine.log()
        await (await join(front)).read(handle)
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
        engine.ping_interval = 0.02  # that stream is to stand
        front = await world.gateway(e1=engine, limits=SessionLimits(ping_timeout=0.2))
        handle, _ = engine.log()
        client = await join(front)
        await client.read(handle)
        failure = await client.failure()
        assert failure.told == (UNAVAILABLE, "SESSION_SILENT")
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
        assert (failure.told, failure.fields) == (INVALID, [field])
        engine.produce(log, 1, end=True)
        assert await other.whole(channel) == [1]
        await until(engine, lambda: engine.side.detached == [1])


async def test_a_first_message_that_breaks_the_rules_leaves_nobody_attached(front, engine, join):
    """What it attached before that is detached."""
    other = await join(front)
    await other.read(engine.log()[0])
    await until(engine, lambda: engine.sessions and engine.side.channels)
    client = await join(front, opened=False)
    attach = [wire.Attach(channel=1, handle=engine.log()[0]), wire.Attach(channel=1, handle=engine.log()[0])]
    await client.say(options=wire.SessionOptions(), attach=attach)
    assert (await client.failure()).fields == ["attach[1].channel"]
    await until(engine, lambda: engine.side.detached == [2])


class TestSlowClients:
    LIMITS = SessionLimits(held_bytes=20_000, message_bytes=5_000)

    @pytest.fixture
    async def front(self, world, engine):
        return await world.gateway(e1=engine, limits=self.LIMITS)

    async def test_bc172_a_client_that_stops_reading_holds_up_nobody_and_loses_nothing(self, front, engine, join):
        """What waits for it is bounded; when it reads and acknowledges again, it gets every token once."""
        slow, quick = await join(front), await join(front)
        logs = []
        for _ in range(3):
            handle, log = engine.log(row=50)
            logs.append(log)
            for client in (slow, quick):
                await client.read(handle, window=10_000_000)
        await until(engine, lambda: engine.sessions and len(engine.side.channels) == 6)
        token = 0
        while sorted(channel.window for channel in engine.side.channels.values())[:3] != [0, 0, 0]:
            for number, log in enumerate(logs, 1):
                engine.produce(log, *range(token, token + 200))
                await quick.until(lambda number=number, log=log: quick.of[number].position == len(log.tokens))
            token += 200
            held = [session.held_bytes for session in front.gateway.sessions.live]
            assert max(held) <= self.LIMITS.held_bytes
        for log in logs:
            engine.produce(log, *range(token, token + 2000), end=True)
        for number, log in enumerate(logs, 1):
            assert await quick.whole(number) == log.tokens
        for number, log in enumerate(logs, 1):
            assert await slow.whole(number) == log.tokens
        assert max(slow.sizes) <= self.LIMITS.message_bytes

    @pytest.fixture
    async def stalled(self, front, engine, join):
        """A client that does not read, at the moment where the engine is held back for it."""
        client = await join(front)
        handle, log = engine.log(row=50)
        await client.read(handle, window=10_000_000)
        await until(engine, lambda: engine.sessions and engine.side.channels)
        while engine.side.channels[1].window:
            engine.produce(log, *range(100))
            await asyncio.sleep(0)
        return client

    async def test_a_client_stopped_for_good_is_detached_when_it_goes(self, engine, stalled):
        assert engine.side.channels
        stalled.call.cancel()
        await until(engine, lambda: not engine.side.channels)

    async def test_a_client_that_stops_reading_and_breaks_the_rules_is_ended(self, front, engine, stalled):
        """A message that cannot be written does not keep the session."""
        await stalled.say(options=wire.SessionOptions())
        await until(engine, lambda: not engine.side.channels)
        assert (await stalled.failure()).fields == ["options"]
        await front.gateway.close()
        assert not front.gateway.sessions.live


class TestDraining:
    async def test_running_sequences_are_read_to_their_end(self, front, engine, join):
        """New sessions are refused, new attaches on old ones are not; then the session ends with DRAINING."""
        handle, log = engine.log()
        client, idle = await join(front), await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].attached)
        draining = asyncio.create_task(front.gateway.drain())
        assert (await idle.failure()).told == (UNAVAILABLE, "DRAINING")
        refused = await join(front, opened=False)
        assert (await refused.failure()).told == (UNAVAILABLE, "DRAINING")
        second, _ = engine.log(tokens=[9], ended=True)
        assert await client.whole(await client.read(second)) == [9]
        engine.produce(log, 1, 2, end=True)
        assert (await client.failure()).told == (UNAVAILABLE, "DRAINING")
        assert client.of[channel].tokens == [1, 2]
        await draining
