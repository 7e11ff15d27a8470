"""Pools of threads: turns, bounds, and work that does not end."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from headrace_engine.engine.work import pool as work_pool
from headrace_engine.engine.work.pool import MAX_STUCK, PoolLimits, WorkPool
from headrace_engine.errors import Internal, InvalidArgument, ResourceExhausted
from support.clocks.waiting import LIMIT, wait_until


def too_long(text: str) -> InvalidArgument:
    return InvalidArgument(f"text: {text}. Send less")


LIMITS = PoolLimits(threads=2, waiting=8, patience=600.0, seconds=600.0, too_long=too_long)


class Gate:
    """Work that the test lets go on, and what was begun of it, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._open = threading.Event()
        self._came = threading.Condition()

    def work(self, name: str) -> str:
        with self._came:
            self.begun.append(name)
            self._came.notify_all()
        assert self._open.wait(LIMIT)
        return name

    def wait_for(self, count: int) -> None:
        """Until so many were begun."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.begun) >= count, LIMIT)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def pool(**changes: Any) -> WorkPool:
    return WorkPool("texts", replace(LIMITS, **changes))


def start(work: Awaitable[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(work)


async def until(done: Callable[[], bool]) -> None:
    """Give way until something is so."""
    await asyncio.to_thread(wait_until, done, "it has not happened")


async def test_work_answers_raises_and_runs_elsewhere() -> None:
    texts = pool()
    assert await texts.run("a", lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        await texts.run("a", lambda: 1 // 0)


async def test_owners_have_turns_and_each_one_s_work_comes_in_order(gate: Gate) -> None:
    texts = pool(waiting=64)
    works = [start(texts.run("a", gate.work, f"a{number}")) for number in range(4)]
    await asyncio.sleep(0)
    works += [start(texts.run("b", gate.work, f"b{number}")) for number in range(2)]
    await asyncio.sleep(0)
    gate.wait_for(2)
    assert sorted(gate.begun) == ["a0", "b0"], "one owner leaves a thread to others"
    gate.open()
    assert await asyncio.gather(*works) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert [name for name in gate.begun if name[0] == "a"] == ["a0", "a1", "a2", "a3"]


async def test_f8_pieces_of_long_work_let_others_in_between(gate: Gate) -> None:
    """Six long works of one owner delay another by one piece at most, and a short one of their own by one each."""
    texts, order = pool(threads=1, waiting=64), []

    def pieces(name: str) -> Generator[None, None, None]:
        for number in range(50):
            order.append(f"{name}{number}")
            yield

    blocking = start(texts.run("z", gate.work, "first"))
    await asyncio.sleep(0)
    works = [start(texts.run_pieces("hog", pieces(f"h{number}-"))) for number in range(6)]
    await asyncio.sleep(0)
    other = start(texts.run("other", order.append, "other"))
    own = start(texts.run("hog", order.append, "own"))
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(blocking, other, own, *works)
    assert order.index("other") <= 1
    assert order.index("own") <= 7
    assert len(order) == 6 * 50 + 2


async def test_f8_what_nobody_waits_for_any_more_is_not_begun(gate: Gate) -> None:
    texts = pool(threads=1)
    first, cut = start(texts.run("a", gate.work, "first")), start(texts.run("b", gate.work, "cut"))
    await asyncio.sleep(0)
    gate.wait_for(1)
    cut.cancel()
    await asyncio.wait([cut])
    assert texts.waiting == 0
    gate.open()
    assert await first == "first"
    assert await texts.run("a", gate.work, "last") == "last"
    assert gate.begun == ["first", "last"]


async def test_f8_cut_work_in_pieces_ends_with_its_piece(gate: Gate) -> None:
    texts, closed = pool(threads=1), threading.Event()

    def pieces() -> Generator[None, None, None]:
        try:
            gate.work("one")
            yield
            gate.work("two")
        finally:
            closed.set()

    cut = start(texts.run_pieces("a", pieces()))
    await asyncio.sleep(0)
    gate.wait_for(1)
    cut.cancel()
    await asyncio.wait([cut])
    gate.open()
    await until(closed.is_set)
    assert gate.begun == ["one"]


async def test_f8_a_full_line_is_refused_with_a_time(gate: Gate) -> None:
    texts = pool(threads=1, waiting=8)
    works = [start(texts.run("a", gate.work, "running"))]
    await asyncio.sleep(0)
    gate.wait_for(1)
    works += [start(texts.run("a", gate.work, f"{number}")) for number in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match=r"texts: 4 are queued already, 4 of this owner; allowed: 8") as full:
        await texts.run("a", gate.work, "too many")
    assert full.value.reason == "QUEUE_FULL"
    assert full.value.retry_after
    works.append(start(texts.run("b", gate.work, "other")))
    await asyncio.sleep(0)
    assert texts.waiting == 5
    gate.open()
    await asyncio.gather(*works)


async def test_f8_what_waits_is_bounded_in_size_too(gate: Gate) -> None:
    texts = pool(threads=1, size=100)
    works = [start(texts.run("a", gate.work, "running", size=1000))]
    await asyncio.sleep(0)
    gate.wait_for(1)
    works.append(start(texts.run("a", gate.work, "alone", size=60)))
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match=r"the queued work has size 60, .* and this one 41; allowed: 100"):
        await texts.run("b", gate.work, "too large", size=41)
    works.append(start(texts.run("b", gate.work, "fits", size=40)))
    gate.open()
    await asyncio.gather(*works)


async def test_f8_work_that_waits_too_long_is_refused_with_a_time(gate: Gate) -> None:
    texts = pool(threads=1, patience=0.01)
    first = start(texts.run("a", gate.work, "first"))
    await asyncio.sleep(0)
    gate.wait_for(1)
    with pytest.raises(ResourceExhausted, match=r"waited in the queue for 0.01 s") as late:
        await texts.run("b", gate.work, "late")
    assert late.value.reason == "QUEUE_FULL"
    assert texts.waiting == 0
    gate.open()
    assert await first == "first"
    assert gate.begun == ["first"]


async def test_f1_work_that_does_not_end_is_told_and_others_go_on(gate: Gate) -> None:
    files = pool(seconds=0.01)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"text: it took more than 0.01 s. Send less"):
            await files.run("nfs", gate.work, "stuck")
    assert files.stuck == 2
    assert await asyncio.wait_for(replace_limits(files, 600.0).run("disk", str, 1), LIMIT) == "1"
    gate.open()
    await until(lambda: not files.stuck)
    assert await files.run("nfs", str, 2) == "2"


def replace_limits(files: WorkPool, seconds: float) -> WorkPool:
    files.limits = replace(files.limits, seconds=seconds)
    return files


async def test_f1_an_owner_s_stuck_work_is_bounded(gate: Gate) -> None:
    files = pool(seconds=0.001)
    for _ in range(MAX_STUCK // 4):
        with pytest.raises(InvalidArgument):
            await files.run("nfs", gate.work, "stuck")
    with pytest.raises(ResourceExhausted, match="took too long and are still running"):
        await files.run("nfs", gate.work, "one more")
    gate.wait_for(MAX_STUCK // 4)  # A thread may be told to be stuck before it has begun.
    assert len(gate.begun) == files.stuck == MAX_STUCK // 4


async def test_f1_cut_work_that_does_not_end_loses_its_thread_too(gate: Gate) -> None:
    files = pool(threads=1, seconds=0.05)
    cut = start(files.run("a", gate.work, "stuck"))
    await asyncio.sleep(0)
    gate.wait_for(1)
    cut.cancel()
    await until(lambda: files.stuck == 1)
    assert await replace_limits(files, 600.0).run("b", str, 1) == "1"


async def test_threads_without_work_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_pool, "IDLE", 0.001)
    texts = WorkPool("soon-idle", LIMITS)
    assert await texts.run("a", str, 1) == "1"
    await until(lambda: not any(thread.name == "headrace-soon-idle" for thread in threading.enumerate()))
    assert await texts.run("a", str, 2) == "2"


async def test_work_goes_on_where_the_system_gives_no_more_threads(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that is there does what waits, and none is lost; where there is none, the caller is told."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    texts, start_thread = pool(), threading.Thread.start
    first = start(texts.run("a", gate.work, "first"))
    await asyncio.sleep(0)
    gate.wait_for(1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    others = [start(texts.run(owner, str, owner)) for owner in "abc"]
    await asyncio.sleep(0)
    gate.open()
    assert await asyncio.wait_for(asyncio.gather(first, *others), LIMIT) == ["first", "a", "b", "c"]
    assert await asyncio.wait_for(texts.run("a", str, 1), LIMIT) == "1"
    with pytest.raises(RuntimeError):
        await pool().run("a", str, 1)
    monkeypatch.setattr(threading.Thread, "start", start_thread)


async def test_stuck_work_is_reported_when_no_threads_are_left(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    texts, start_thread = pool(threads=1, seconds=0.05), threading.Thread.start
    stuck, waits = start(texts.run("a", gate.work, "stuck")), start(texts.run("b", str, 1))
    await asyncio.sleep(0)
    gate.wait_for(1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(InvalidArgument):
        await asyncio.wait_for(stuck, LIMIT)
    monkeypatch.setattr(threading.Thread, "start", start_thread)
    gate.open()
    assert await asyncio.wait_for(waits, LIMIT) == "1"


class Panic(BaseException):
    """What native libraries raise."""


async def test_f1_nothing_waits_for_its_threads_when_the_process_ends() -> None:
    assert await pool().run("a", lambda: threading.current_thread().daemon)


async def test_f2_a_panic_ends_its_work_alone() -> None:
    def panic() -> None:
        raise Panic("unwrap on None")

    texts = pool(threads=1)
    with pytest.raises(Internal, match="Panic: unwrap on None") as caught:
        await texts.run("a", panic)
    assert isinstance(caught.value.__cause__, Panic)
    assert await texts.run("a", str, 1) == "1"


class Parsed:
    """Something large that work has made of a file."""


async def test_work_that_fails_keeps_nothing_of_what_it_held() -> None:
    """Its exception may be kept, and with it the frames: what stood in them is freed without a garbage collection."""
    kept: list[weakref.ref[Parsed]] = []

    def work() -> None:
        parsed = Parsed()
        kept.append(weakref.ref(parsed))
        raise InvalidArgument("no model")

    with pytest.raises(InvalidArgument) as found:
        await pool().run("", work)
    assert found.value.__traceback__ is not None
    assert [each() for each in kept] == [None]
