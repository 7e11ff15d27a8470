"""What one client may take of what all share, and what work for one may cost the others."""

from __future__ import annotations

import asyncio
from functools import partial

import grpc
import pytest
from headrace_gateway.forwarding import calls
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.sessions import client_channels as client_book
from headrace_gateway.sessions import upstream_channels as upstream_book
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.status import CallError
from headrace_proto.pure.shares import Shares
from headrace_proto.v1 import request_service_pb2, request_service_pb2_grpc
from unit.gateway.conftest import until
from unit.gateway.failures import failing
from unit.gateway.sessions.session_plumbing import Plumbing

FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")


class TestShares:
    def test_whoever_comes_first_leaves_a_quarter(self):
        shares = Shares(256)
        assert fill(shares, "first") == 192
        assert fill(shares, "second") == 48
        assert shares.can_take("third", 12)
        assert not shares.can_take("third", 13)

    def test_one_is_never_refused_while_one_is_left(self):
        shares = Shares(3)
        assert [fill(shares, party) for party in "abcd"] == [2, 1, 0, 0]

    def test_what_is_given_back_goes_to_those_who_hold_less(self):
        shares = Shares(256)
        for party in ("first", "second"):
            fill(shares, party)
        for _ in range(1000):
            shares.give_back("first")
            for party in ("first", "second"):
                fill(shares, party)
            shares.give_back("second")
            for party in ("second", "first"):
                fill(shares, party)
        assert abs(shares.held("first") - shares.held("second")) <= 3
        assert shares.taken <= 256

    def test_who_holds_nothing_is_not_remembered(self):
        shares = Shares(4)
        with shares.holding("a"):
            assert (shares.parties, shares.taken) == (1, 1)
        assert (shares.parties, shares.taken) == (0, 0)


def fill(shares, party):
    count = 0
    while shares.can_take(party):
        shares.take(party)
        count += 1
    return count


class TestChannels:
    def test_f13_one_session_cannot_take_all_channels_to_an_engine(self, monkeypatch):
        """It is refused what it asks beyond its share, attach by attach; another session gets all that it wants."""
        monkeypatch.setattr(upstream_book, "MAX_READERS", 64)
        plumbing = Plumbing(clients=2, limits=SessionLimits())
        greedy, other = plumbing.clients
        handle = plumbing.log(tokens=[1, 2])
        for _ in range(100):
            greedy.attach(handle, window=0)
        for _ in range(10):
            other.attach(handle)
        plumbing.flow()
        while greedy.read() or other.read():
            pass
        refused = [greedy[channel].error for channel in range(1, 101) if greedy[channel].error]
        assert len(refused) == 100 - 48
        error = CallError(refused[0])
        assert (error.code, error.reason) == FULL
        text = 'this session reads 48 sequences of engine "e1"; of 64 for all 16 are left, which others need'
        assert error.status.message == f"{text}: detach some, or try again later"
        assert all(other[channel].tokens == [1, 2] for channel in range(1, 11))

    def test_f13_a_share_is_given_back_with_each_channel(self, monkeypatch):
        """By a detach, a refusal of the engine, the end of the session, and the loss of the engine."""
        monkeypatch.setattr(upstream_book, "MAX_READERS", 4)
        plumbing = Plumbing(clients=2, limits=SessionLimits())
        client, other = plumbing.clients
        handle = plumbing.log()
        for _ in range(20):
            client.say(detach=[client.readings.detach(client.attach(handle))])
            client.attach("e1/x/unknown")
            plumbing.flow()
            other.attach(handle)
            other.channels.close()
            plumbing.flow()
        channel = client.attach(handle)
        plumbing.lose("e1")
        plumbing.flow()
        while client.read():
            pass
        assert client[channel].error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert plumbing.upstreams["e1"].readers == 0

    def test_f13_what_one_may_have_is_below_what_there_is(self):
        assert client_book.MAX_CHANNELS < upstream_book.MAX_READERS

    def test_f13_a_channel_too_many_is_refused_alone(self, monkeypatch):
        monkeypatch.setattr(client_book, "MAX_CHANNELS", 2)
        plumbing = Plumbing(clients=1, limits=SessionLimits())
        (client,) = plumbing.clients
        handle = plumbing.log(tokens=[1])
        for _ in range(3):
            client.attach(handle)
        plumbing.flow()
        while client.read():
            pass
        assert [client[channel].tokens for channel in (1, 2, 3)] == [[1], [1], []]
        assert "2 sequences, the most that one session may read" in client[3].error.message

    def test_f14_an_attach_that_names_an_owner_is_refused_alone(self):
        plumbing = Plumbing(clients=1, limits=SessionLimits())
        (client,) = plumbing.clients
        handle = plumbing.log(tokens=[1])
        client.attach(handle, owner="ann")
        client.attach(handle)
        plumbing.flow()
        while client.read():
            pass
        assert CallError(client[1].error).reason == "NOT_SUPPORTED"
        assert client[2].tokens == [1]


class TestCalls:
    def test_f13_a_connection_has_a_share_of_the_calls_in_progress(self, monkeypatch):
        monkeypatch.setattr(calls, "MAX_CALLS", 8)
        live = LiveCalls()
        held = [live.sharing("SyncRequest", "greedy") for _ in range(4)]
        for one in held:
            one.__enter__()
        with pytest.raises(
            CallError, match="connection has 4 calls in progress, of 4 of its host, whose other"
        ) as caught:
            live.sharing("GetRequest", "greedy")
        assert caught.value.reason == "QUEUE_FULL"
        with live.sharing("GetRequest", "other"):
            pass
        with live.sharing("Session", "greedy"):
            pass
        for one in held:
            one.__exit__(None, None, None)
        with live.sharing("GetRequest", "greedy"):
            pass

    def test_f13_many_connections_of_a_host_have_its_share(self, monkeypatch):
        monkeypatch.setattr(calls, "MAX_CALLS", 8)
        live = LiveCalls()
        begin = partial(live.sharing, "SyncRequest")
        held = [begin(f"ipv4:192.0.2.1:{number}") for number in range(6)]
        for one in held:
            one.__enter__()
        with pytest.raises(CallError, match="host has 6 calls in progress; of 8 for all 2 are left"):
            live.sharing("GetRequest", "ipv4:192.0.2.1:7")
        with live.sharing("GetRequest", "ipv4:192.0.2.2:1"):
            pass

    async def test_f13_calls_that_wait_leave_others_their_turn(self, world, engine, join, monkeypatch):
        """Through a real gateway: a connection full of waiting calls is told so, and another is served."""
        monkeypatch.setattr(calls, "MAX_CALLS", 4)
        front, over = await world.gateway(e1=engine), asyncio.Event()

        async def wait(request, context):
            await over.wait()

        engine.script["GeneratedElements"] = wait
        request = request_service_pb2.GeneratedElementsRequest(handle="e1/a/b")
        waiting = [front.requests.GeneratedElements(request) for _ in range(2)]
        await until(engine, lambda: len(engine.asked("GeneratedElements")) == 2)
        request = request_service_pb2.ListRequestsRequest()
        failure = await failing(front.requests.ListRequests(request))
        assert failure.reported == FULL
        assert failure.retry_seconds > 0
        other = request_service_pb2_grpc.RequestServiceStub((await join(front)).channel)
        assert not (await other.ListRequests(request)).requests
        over.set()
        for call in waiting:
            assert await call.read() is grpc.aio.EOF
        assert not (await front.requests.ListRequests(request)).requests
