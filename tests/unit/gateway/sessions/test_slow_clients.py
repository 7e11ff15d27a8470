"""Sessions of clients that do not read."""

from __future__ import annotations

import asyncio

import pytest
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.outbox import Outbox
from headrace_proto.v1 import session_pb2 as wire
from unit.gateway.conftest import until


@pytest.mark.parametrize("count", [1, 20, 45, 46, 47, 48, 200])
def test_messages_of_many_items_stay_within_their_bytes(count: int) -> None:
    limits = SessionLimits(message_bytes=600)
    outbox = Outbox(limits, lambda: None)
    for channel in range(1, count + 1):
        outbox.put_attached(wire.Attached(channel=channel, checksum=7))
        outbox.put_window(wire.WindowState(channel=channel, position=9))
    sent = []
    while (message := outbox.take()) is not None:
        sent.append(message)
    assert max(message.ByteSize() for message in sent) <= limits.message_bytes
    assert [item.channel for message in sent for item in message.attached] == [*range(1, count + 1)]


class TestSlowClients:
    LIMITS = SessionLimits(held_bytes=20_000, message_bytes=5_000)

    @pytest.fixture
    async def front(self, world, engine):
        return await world.gateway(e1=engine, limits=self.LIMITS)

    async def test_bc172_a_stalled_client_delays_nobody_and_loses_nothing(self, front, engine, join):
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

    async def test_a_stalled_client_that_breaks_the_rules_is_ended(self, front, engine, stalled):
        """A message that cannot be written does not keep the session."""
        await stalled.say(options=wire.SessionOptions())
        await until(engine, lambda: not engine.side.channels)
        assert (await stalled.failure()).fields == ["options"]
        await front.gateway.close()
        assert not front.gateway.sessions.live
