"""How fast one connection may attach."""

from __future__ import annotations

import gc
from unittest.mock import Mock

import pytest
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.sessions.attach_pace import BURST, RATE, AttachPace
from headrace_gateway.sessions.sessions import ClientSession, Sessions
from headrace_proto.v1 import session_pb2 as wire
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


def test_a_connection_that_rested_has_one_burst_again() -> None:
    pace = AttachPace()
    pace.delay(BURST, 100.0)
    assert pace.delay(BURST, 1000.0) == 0.0
    assert pace.delay(64, 1000.0) == pytest.approx(64 / RATE)


async def test_every_attach_of_a_connection_counts_once(world, engine, join, monkeypatch) -> None:
    """However many come in one message, and however many sessions the connection has."""
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
    by_pace = {pace: [count for each, count in charged if each is pace] for pace, _ in charged}
    assert [sum(counts) for counts in by_pace.values()] == [200, 200]
    assert max(count for _, count in charged) <= 64


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
    """A connection that ends its session and opens another goes on with what it has left."""
    waits: list[float] = []

    async def run(session: ClientSession, *_: object) -> None:
        waits.append(session._pace.delay(BURST, 100.0))

    monkeypatch.setattr(ClientSession, "run", run)
    monkeypatch.setattr(AttachPace, "rest", lambda pace, now: 3600.0)
    sessions = Sessions("g1", "i1", Mock(), LiveCalls(), QUICK)
    for peer in ("ipv4:192.0.2.1:1", "ipv4:192.0.2.1:1", "ipv4:192.0.2.1:2"):
        await sessions.serve(Mock(), Mock(peer=lambda peer=peer: peer))
        gc.collect()
    assert [wait > 0 for wait in waits] == [False, True, False]
    assert len(sessions._paces) == 2
