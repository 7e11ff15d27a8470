"""A rank is lost that does nothing for the whole limit, or does not get on for several times it, and no sooner."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from unittest.mock import Mock, PropertyMock, patch

import pytest
from headrace_engine.config import ModelFormat
from headrace_engine.errors import HeadraceError
from headrace_engine.ipc.messages import CoreFailed
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.ranks import RankLoaded
from headrace_engine.process import rank_link, rank_watch
from headrace_engine.process.rank_link import RankLink
from headrace_engine.process.rank_watch import Stall, watch
from support.clocks.waiting import wait_until

CHECKS = 10
"""Checks within the limit."""
MORE = 10
"""Times the limit for a rank that loads, or computes."""

INVALID = "connection.sendall(bytes((1, 0, 0, 0, 255)))"
POLLS = """
def poll():
    while True: pass
threading.Thread(target=poll, daemon=True).start()
connection.sendall(frame(RankLoaded()))
"""

Start = Callable[[str], RankLink]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a rank whose process does this, and then waits for ever; it ends with the test."""
    with ExitStack() as stack:

        def started(does: str) -> RankLink:
            lines = (
                "import socket, sys, threading",
                "from headrace_engine.ipc.frames import frame",
                "from headrace_engine.ipc.ranks import RankAdapterRead, RankLoaded",
                "connection = socket.socket(fileno=int(sys.argv[1]))",
                does,
                "while connection.recv(65536): pass",
            )
            monkeypatch.setattr(rank_link, "_PROGRAM", (sys.executable, "-c", "\n".join(lines)))
            link = RankLink(1, CorePlan("model", ModelFormat.AUTO))
            stack.callback(link.end)
            stack.callback(link.kill)
            return link

        yield started


def test_ten_checks_without_anything_are_the_limit() -> None:
    stall = Stall()
    assert [stall.note(False, 7, 3) for _ in range(CHECKS + 1)] == [0] * CHECKS + [1]


@pytest.mark.parametrize("moved", [(True, 7, 3), (False, 8, 3), (False, 7, 4)])
def test_anything_within_the_limit_starts_it_anew(moved: tuple[bool, int, int]) -> None:
    """An answer, processor time of the rank, or progress of rank 0, for which it may wait."""
    stall = Stall()
    checks = [(False, 7, 3)] * CHECKS + [moved] + [(False, *moved[1:])] * (CHECKS - 1)
    assert not any(stall.note(*check) for check in checks)


def test_a_rank_that_loads_may_do_nothing_for_longer() -> None:
    """Its storage may be silent."""
    stall = Stall()
    checks = [stall.note(False, 7, 3, MORE) for _ in range(MORE * CHECKS + 1)]
    assert checks == [0] * MORE * CHECKS + [MORE]


@pytest.mark.parametrize("patience", [1, MORE])
def test_a_rank_that_spins_is_lost_after_several_limits(patience: int) -> None:
    """It computes throughout, and neither it nor rank 0 gets on."""
    stall, most = Stall(), patience * MORE * CHECKS
    checks = [stall.note(False, time, 3, patience) for time in range(most + 1)]
    assert checks == [0] * most + [patience * MORE]


@pytest.mark.parametrize("moved", [(True, 0), (False, 1)])
def test_a_rank_that_is_slow_throughout_is_never_lost(moved: tuple[bool, int]) -> None:
    """It answers now and then, or rank 0 gets on."""
    stall, (answers, steps) = Stall(), moved
    for turn in range(3):
        own = 3 + turn * steps
        checks = [stall.note(False, number, own) for number in range(MORE * CHECKS - 1)]
        assert not any([*checks, stall.note(answers, -1, own + steps)])


def test_the_end_of_a_rank_is_noticed_whatever_the_limit() -> None:
    """Poll takes no more than 2³¹ − 1 milliseconds."""
    ours, theirs = socket.socketpair()
    theirs.close()
    ended = CoreFailed("ENGINE_FAULT", "ended")
    rank = Mock(spec=RankLink, number=1, descriptor=ours.fileno(), failure=lambda: ended)
    assert watch([rank], 1e12, lambda: 0) is ended
    ours.close()


def test_a_rank_may_wait_for_another_that_computes() -> None:
    """It does nothing for longer than the limit, until the other one has computed for several times as long."""
    times = iter(range(10**6))
    poll = Mock(side_effect=lambda _: [])
    waits, computes = (Mock(spec=RankLink, number=number, loaded=True, ping=lambda: False) for number in (1, 2))
    type(waits).processor_time = 7
    type(computes).processor_time = PropertyMock(side_effect=lambda: next(times))
    with patch.object(rank_watch.select, "poll", lambda: Mock(register=Mock(), poll=poll)):
        lost = watch([waits, computes], 3, lambda: 0)
    assert poll.call_count == MORE * CHECKS + 1
    assert lost.message == "ranks 1, 2 of the model made no progress for 30 s (10 times --core-ping-limit)"


def test_a_rank_that_sends_what_is_no_message_is_lost(start: Start) -> None:
    """It would go on; the thread that reads it does not end."""
    lost = watch([start(INVALID)], 10, lambda: 0)
    text = "rank 1 of the model was killed by SIGKILL: it sent an invalid message (unknown message type 0xff)"
    assert lost == CoreFailed("ENGINE_FAULT", text)


def test_an_answer_that_is_no_message_is_a_failure(start: Start) -> None:
    """The core's thread reads it."""
    link = start(INVALID)
    with pytest.raises(HeadraceError, match="sent an invalid message"):
        link.expect(RankLoaded)


def test_what_a_rank_says_of_an_adapter_is_waited_for(start: Start) -> None:
    """A rank that ends says nothing more."""
    link = start("connection.sendall(frame(RankAdapterRead(2, 'gone')) + frame(RankAdapterRead(1, '')))")
    assert [link.adapter_read(number) for number in (1, 2)] == ["", "gone"]
    link.kill()
    with pytest.raises(HeadraceError, match="rank 1 of the model was killed by SIGKILL"):
        link.adapter_read(3)


def test_threads_that_poll_do_not_excuse_a_loaded_rank(start: Start) -> None:
    """While it loads, all threads count, since some work for the main one; then the main one alone."""
    link = start(POLLS)
    link.expect(RankLoaded)

    def whole() -> int:
        return time.clock_gettime_ns((~link.pid << 3) | 2)

    def passes(nanoseconds: int) -> None:
        end = whole() + nanoseconds
        wait_until(lambda: whole() >= end, "the thread does not poll")

    passes(100_000_000)  # By then the main thread waits.
    before = link.processor_time
    passes(300_000_000)
    assert link.processor_time == before
    link.loaded = False
    assert link.processor_time > before
