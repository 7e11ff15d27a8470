"""Blocking work in threads: bounded in threads, in what waits and in time, and shared fairly by its owners."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace_engine.engine.work.fair_queue import FairLine
from headrace_engine.engine.work.job import Job
from headrace_engine.errors import HeadraceError, ResourceExhausted

_Result = TypeVar("_Result")

IDLE = 5.0
"""Seconds after which a thread without work ends."""

MAX_STUCK = 16
"""Threads whose work took too long that are replaced by others; a quarter of them for one owner."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a pool bears.

    Attributes:
        threads: works that are done at once; one owner has all but one of them.
        waiting: works that may wait.
        size: what those may measure together, in the unit of `WorkPool.run`.
        patience: seconds that work may wait until it begins.
        seconds: that work, or a piece of it, may take.
        too_long: makes the failure of work that takes longer, out of what happened. It is of the work, whatever engine
            does it.
    """

    threads: int
    waiting: int
    patience: float
    seconds: float
    too_long: Callable[[str], HeadraceError]
    size: int = 1 << 62


class WorkPool:
    """Does work of one kind. Its threads are daemons: nothing waits for them when the process ends.

    A thread cannot be stopped. Where work takes too long its caller is told so, and another thread goes on in the
    place of its own, until too many are stuck.

    Args:
        name: the kind of work, for messages and for the names of threads.
        clock: seconds that never go back.
    """

    def __init__(self, name: str, limits: PoolLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.limits = name, limits
        self._clock = clock
        self._line: FairLine[Job[Any]] = FairLine(limits.waiting, limits.size)
        self._changed = threading.Condition()
        self._threads = self._idle = self._stuck = 0
        self._busy: Counter[str] = Counter()
        self._stuck_of: Counter[str] = Counter()
        self._mean = 0.1

    @property
    def waiting(self) -> int:
        """Works that have not begun, or wait for the turn of their next piece."""
        return len(self._line)

    @property
    def stuck(self) -> int:
        """Threads whose work took too long and has not ended."""
        return self._stuck

    async def run(self, owner: str, work: Callable[..., _Result], *arguments: Any, size: int = 0) -> _Result:
        """The result of work, which is done in a thread.

        Args:
            owner: for whom it is; owners have turns.
            size: how large it is, for the bound of what waits.

        Raises:
            ResourceExhausted: QUEUE_FULL, too much waits, it waited too long, or threads of its owner are stuck.
            HeadraceError: it took too long; which one the limits say.
        """
        return await self.run_pieces(owner, _whole(work, arguments), size)

    async def run_pieces(self, owner: str, pieces: Generator[None, None, _Result], size: int = 0) -> _Result:
        """The result of work that is done piece by piece, each up to a `yield`; others have turns in between.

        Raises:
            ResourceExhausted, HeadraceError: as `run`; the time holds for each piece.
        """
        job = Job(owner, pieces, size, self._clock())
        self._enter(job)
        self._watch(job)
        try:
            return await job.answer
        finally:
            self._leave(job)

    def _enter(self, job: Job[Any]) -> None:
        with self._changed:
            if self._stuck_of[job.owner] >= MAX_STUCK // 4:
                raise self._full(f"{self.name}: work of this owner took too long several times, and has not ended")
            if refusal := self._line.why_not(job):
                raise self._full(f"{self.name}: {refusal}")
            self._line.add(job)
            try:
                self._find_thread()
            except RuntimeError:
                self._line.discard(job)
                raise

    def _find_thread(self) -> None:
        """Have somebody do what waits; the lock is held.

        Raises:
            RuntimeError: the system gives no thread, and there is none.
        """
        spare = self.limits.threads - max(0, self._stuck - MAX_STUCK)
        if len(self._line) > self._idle and self._threads < spare:
            try:
                threading.Thread(target=self._serve, name=f"headrace-{self.name}", daemon=True).start()
                self._threads += 1  # The lock keeps it from its first work until it is counted.
            except RuntimeError:  # Those that are there will come to it.
                if not self._threads:
                    raise
        self._changed.notify()

    def _leave(self, job: Job[Any]) -> None:
        """Nobody waits for it any more: what has not begun is not begun."""
        with self._changed:
            job.wanted = False
            if self._line.discard(job):
                job.drop()

    def _watch(self, job: Job[Any]) -> None:
        """Look at it again when its time may be over: it may begin at any moment."""
        delay = min(self._time_left(job), self.limits.seconds)
        job.watch = asyncio.get_running_loop().call_later(delay, self._look, job)

    def _look(self, job: Job[Any]) -> None:
        """Whether work waits or lasts too long; called in the event loop until it has ended."""
        with self._changed:
            if job.ended:
                return
            if self._time_left(job) > 0:
                self._watch(job)
                return
            if job.begun is None:
                self._line.discard(job)
                job.drop()
                job.fail(self._full(f"{self.name}: it waited for its turn for {self.limits.patience:g} s"))
                return
            self._note_stuck(job)
        job.fail(self.limits.too_long(f"it took more than {self.limits.seconds:g} s"))

    def _time_left(self, job: Job[Any]) -> float:
        if job.begun is None and not job.pieces_done:
            return job.since + self.limits.patience - self._clock()
        begun = self._clock() if job.begun is None else job.begun
        return begun + self.limits.seconds - self._clock()

    def _note_stuck(self, job: Job[Any]) -> None:
        job.stuck, job.wanted = True, False
        self._stuck += 1
        self._stuck_of[job.owner] += 1
        self._threads -= 1
        self._busy[job.owner] -= 1
        with suppress(RuntimeError):  # What waits is refused in its time, or done by the thread of who comes next.
            self._find_thread()

    def _serve(self) -> None:
        """Do what waits, for as long as something does."""
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Do the next piece of work; whether its thread is needed for more."""
        job = self._next()
        return job is not None and self._done(job, more=job.step())

    def _next(self) -> Job[Any] | None:
        with self._changed:
            came = True
            while (job := self._line.take(self._may)) is None:
                if not came:
                    self._threads -= 1
                    return None
                self._idle += 1
                came = self._changed.wait(IDLE)
                self._idle -= 1
            self._busy[job.owner] += 1
            job.begun = self._clock()
            return job

    def _may(self, owner: str) -> bool:
        return self._busy[owner] < max(1, self.limits.threads - 1)

    def _done(self, job: Job[Any], *, more: bool) -> bool:
        """A piece is done; whether its thread is still needed."""
        with self._changed:
            assert job.begun is not None, "what was done was begun"
            self._mean += ((self._clock() - job.begun) - self._mean) / 8
            job.begun = None
            job.ended = not (more and job.wanted)
            if not job.ended:
                self._line.add(job)
            stays = not job.stuck or self._recover(job)
            if not job.stuck:
                self._busy[job.owner] -= 1
                self._busy += Counter()
            self._find_thread()
        if more and job.ended:
            job.drop()
        return stays

    def _recover(self, job: Job[Any]) -> bool:
        """Work that took too long has ended after all; whether its thread has a place again."""
        self._stuck -= 1
        self._stuck_of[job.owner] -= 1
        self._stuck_of += Counter()
        stays = self._threads < self.limits.threads
        self._threads += stays
        return stays

    def _full(self, text: str) -> ResourceExhausted:
        waiting = len(self._line)
        delay = min(60.0, max(0.5, waiting * self._mean / self.limits.threads))
        return ResourceExhausted(
            f"{text}. Try again in {delay:.1f} s",
            retry_after=delay,
            waiting_ahead=waiting,
            max_waiting=self.limits.waiting,
        )


def _whole(work: Callable[..., _Result], arguments: tuple[Any, ...]) -> Generator[None, None, _Result]:
    """Work as its only piece."""
    yield from ()
    return work(*arguments)
