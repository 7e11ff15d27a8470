"""Session streams through a real gateway, to real servers."""

from __future__ import annotations

import grpc
import pytest
from headrace_proto.v1 import engine_service_pb2 as facts_wire
from headrace_proto.v1 import session_pb2 as wire
from support.scripted.engine_answers import RUNNING, refuse
from unit.gateway.conftest import QUICK, until
from unit.gateway.failures import carried

NOT_FOUND, UNAVAILABLE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE
INVALID = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


@pytest.fixture
async def front(world, engine):
    return await world.gateway(e1=engine, limits=QUICK, poll_interval=0.05)


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
        ("options", "reported"),
        [
            (None, INVALID),
            (wire.SessionOptions(load=True), (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")),
            (wire.SessionOptions(usage=True), (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")),
            (
                wire.SessionOptions(cache_events=wire.CacheEventsOptions()),
                (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED"),
            ),
        ],
    )
    async def test_options_come_first_and_ask_for_nothing_of_gateways(self, front, join, options, reported):
        client = await join(front, opened=False)
        await client.say(options=options, ping=wire.Ping(number=1))
        failure = await client.failure()
        assert failure.reported == reported
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
        assert {each: carried(client.of[each].error).reported for each in bad} == bad
        reported = carried(client.of[3].error)
        assert reported.facts["handle"] == lost

    async def test_a_release_while_reading_ends_the_channel(self, front, engine, join):
        handle, log = engine.log(tokens=[1])
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].tokens)
        log.released = True
        engine.note()
        await client.until(lambda: client.of[channel].error)
        assert carried(client.of[channel].error).reported == (NOT_FOUND, "UNKNOWN_REQUEST")

    async def test_an_engine_without_sessions_is_told_as_it_answers(self, world, engine, join):
        async def refusing(requests, context):
            await anext(aiter(requests))  # gRPC may report a refusal while the first message is sent as its own fault
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "NOT_SUPPORTED")

        engine.script["Session"] = refusing
        front = await world.gateway(e1=engine, limits=QUICK)
        handle, _ = engine.log()
        client = await join(front)
        channel = await client.read(handle)
        await client.until(lambda: client.of[channel].error)
        assert carried(client.of[channel].error).reported == (grpc.StatusCode.INVALID_ARGUMENT, "NOT_SUPPORTED")
