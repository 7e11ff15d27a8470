"""How fast one host may attach."""

from __future__ import annotations

import asyncio
import gc
from unittest.mock import Mock

import pytest
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.sessions.attach_pace import BURST, RATE, AttachPace
from headrace_gateway.sessions.client_session import ClientSession
from headrace_gateway.sessions.sessions import Sessions
from headrace_proto.v1 import session_pb2 as wire
from support.clocks.clock import settle
from unit.gateway.conftest import QUICK
from unit.gateway.sessions.session_plumbing import Plumbing


def test_a_burst_waits_for_nothing() -> None:
    pace = AttachPace()
    assert [pace.delay(BURST // 4, 100.0) for _ in range(4)] == [0.0] * 4


def test_attaches_beyond_a_burst_come_at_the_rate() -> None:
    pace, now = AttachPace(), 100.0
    for _ in range(10 * BURST // 64):
        now += pace.delay(64, now)
    assert now - 100.0 == pytest.approx(9 * BURST / RATE)


def test_a_host_that_rested_has_one_burst_again() -> None:
    pace = AttachPace()
    pace.delay(BURST, 100.0)
    assert pace.delay(BURST, 1000.0) == 0.0
    assert pace.delay(64, 1000.0) == pytest.approx(64 / RATE)


async def test_every_attach_of_a_host_counts_once(world, engine, join, monkeypatch) -> None:
    """However many come in one message, and however many connections and sessions it has."""
    charged: list[tuple[AttachPace, int]] = []

    def delay(pace: AttachPace, count: int, now: float) -> float:
        charged.append((pace, count))
        return 0.0

    monkeypatch.setattr(AttachPace, "delay", delay)
    front = await world.gateway(e1=engine, limits=QUICK)
    client, other = await join(front), await join(front)
    handle, _ = engine.log()
    for each in (client, other):
        await each.say(attach=[each.attach(handle) for _ in range(200)])
        await each.say(ping=wire.Ping(number=1))
        await each.until(lambda each=each: each.pongs == [1])
    assert len({id(pace) for pace, _ in charged}) == 1
    assert sum(count for _, count in charged) == 400
    assert max(count for _, count in charged) <= 64


class TestTurns:
    """Which connection of a host may attach next: sleeps end when the test says so."""

    @pytest.fixture
    def sleeps(self) -> list[asyncio.Future[None]]:
        """The sleeps that were begun."""
        return []

    @pytest.fixture
    def host(self, sleeps: list[asyncio.Future[None]]) -> AttachPace:
        async def sleep(seconds: float) -> None:
            sleeps.append(asyncio.get_running_loop().create_future())
            await sleeps[-1]

        return AttachPace(sleep)

    async def test_a_connection_waits_for_one_portion_at_a_time(
        self, host: AttachPace, sleeps: list[asyncio.Future[None]]
    ) -> None:
        """So one with many sessions stands once before the next connection, and not as often as it has sessions."""
        counted = []
        greedy, modest = host.connection("a"), host.connection("b")
        tasks = [asyncio.ensure_future(pace.wait(64)) for pace in (*[greedy] * 10, modest)]
        await settle()
        assert len(sleeps) == 2
        sleeps[1].set_result(None)
        await tasks[-1]
        for number in range(10):
            counted.append([task.done() for task in tasks].count(True))
            sleeps[0 if number == 0 else number + 1].set_result(None)
            await settle()
        assert counted == list(range(1, 11))
        assert all(task.done() for task in tasks)

    async def test_a_session_cut_while_it_waits_leaves_its_turn(
        self, host: AttachPace, sleeps: list[asyncio.Future[None]]
    ) -> None:
        first, second = (asyncio.ensure_future(host.connection("a").wait(64)) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        assert len(sleeps) == 2
        sleeps[1].set_result(None)
        await second

    async def test_who_attaches_nothing_waits_for_no_turn(
        self, host: AttachPace, sleeps: list[asyncio.Future[None]]
    ) -> None:
        attaching, acking = (asyncio.ensure_future(host.connection("a").wait(count)) for count in (64, 0))
        await settle()
        sleeps[1].set_result(None)
        await acking
        assert not attaching.done()
        attaching.cancel()


def test_a_session_that_ends_detaches_some_at_a_time() -> None:
    plumbing = Plumbing()
    client, upstream = plumbing.clients[0], plumbing.upstreams["e1"]
    handle = plumbing.log()
    for _ in range(150):
        client.attach(handle)
    left = [upstream.readers for _ in client.channels.close_in_portions()]
    assert left == [86, 22, 0]


def test_a_pace_rests_until_it_has_a_burst_again() -> None:
    pace = AttachPace()
    assert pace.rest(100.0) == 0.0
    pace.delay(BURST // 2, 100.0)
    assert pace.rest(100.0) == pytest.approx(BURST / 2 / RATE)
    assert pace.rest(100.0 + BURST / RATE) == 0.0


async def test_one_session_after_another_has_no_new_burst(monkeypatch) -> None:
    """A host that ends its session and opens another, on the same or another connection, goes on with what is left."""
    waits: list[float] = []

    async def run(session: ClientSession, *_: object) -> None:
        waits.append(session._pace._host.delay(BURST, 100.0))

    monkeypatch.setattr(ClientSession, "run", run)
    monkeypatch.setattr(AttachPace, "rest", lambda pace, now: 3600.0)
    sessions = Sessions("g1", "i1", Mock(), LiveCalls(), QUICK, Mock())
    for peer in ("ipv4:192.0.2.1:1", "ipv4:192.0.2.1:1", "ipv4:192.0.2.1:2", "ipv4:192.0.2.2:1"):
        await sessions.serve(Mock(), Mock(peer=lambda peer=peer: peer))
        gc.collect()
    assert [wait > 0 for wait in waits] == [False, True, True, False]
    assert len(sessions._paces._hosts) == 2
