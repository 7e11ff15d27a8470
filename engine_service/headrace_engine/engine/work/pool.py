"""A thread pool for blocking work: bounded in threads, queue and time, and shared fairly among owners."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace_engine.engine.work.fair_queue import FairQueue
from headrace_engine.engine.work.job import Job
from headrace_engine.errors import HeadraceError, ResourceExhausted

_Result = TypeVar("_Result")

IDLE = 5.0
"""Seconds after which an idle thread ends."""

MAX_STUCK = 16
"""Maximum number of stuck threads that are replaced; one owner may have a quarter of them."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a pool.

    Attributes:
        threads: number of threads; one owner may use all but one of them.
        waiting: maximum number of queued jobs.
        size: maximum total size of the queued jobs, in the unit of `WorkPool.run`.
        patience: seconds that a job may wait until it starts.
        seconds: seconds that a job, or a piece of it, may take.
        too_long: builds the error of a job that takes longer from a description; one that another engine would return
            as well.
    """

    threads: int
    waiting: int
    patience: float
    seconds: float
    too_long: Callable[[str], HeadraceError]
    size: int = 1 << 62


class WorkPool:
    """Runs work of one kind in threads.

    The pool owns its threads: they start when work is queued, end when idle, and are daemons, so the process does not
    wait for them at its end. A thread cannot be stopped: when a job exceeds its time, the caller gets an error and the
    thread counts as stuck; a new thread replaces it, up to MAX_STUCK. A stuck thread that ends its job after all
    rejoins the pool if there is a vacancy. One condition guards all state; jobs run without it.

    Args:
        name: the kind of work, for messages and names of threads.
        clock: monotonic time, in seconds.
    """

    def __init__(self, name: str, limits: PoolLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.limits = name, limits
        self._clock = clock
        self._queue: FairQueue[Job[Any]] = FairQueue(limits.waiting, limits.size)
        self._changed = threading.Condition()
        self._threads = self._idle = self._stuck = 0
        self._busy: Counter[str] = Counter()
        self._stuck_of: Counter[str] = Counter()
        self._mean = 0.1

    @property
    def waiting(self) -> int:
        """Number of queued jobs: not started, or waiting for the turn of their next piece."""
        return len(self._queue)

    @property
    def stuck(self) -> int:
        """Number of threads whose job exceeded its time and has not ended."""
        return self._stuck

    async def run(self, owner: str, work: Callable[..., _Result], *arguments: Any, size: int = 0) -> _Result:
        """Return the result of work that is run in a thread.

        Args:
            owner: owner of the work; owners are served in turn.
            size: its size, for the limit on queued work.

        Raises:
            ResourceExhausted: QUEUE_FULL, the queue is full, it waited too long, or threads of its owner are stuck.
            HeadraceError: it took too long; see `PoolLimits.too_long`.
        """
        return await self.run_pieces(owner, _whole(work, arguments), size)

    async def run_pieces(self, owner: str, pieces: Generator[None, None, _Result], size: int = 0) -> _Result:
        """Return the result of work that is run piece by piece, each up to a `yield`; others have turns in between.

        Raises:
            ResourceExhausted, HeadraceError: as `run`; the time limit applies to each piece.
        """
        job = Job(owner, pieces, size, self._clock())
        self._enqueue(job)
        self._watch(job)
        try:
            return await job.answer
        finally:
            self._abandon(job)

    def _enqueue(self, job: Job[Any]) -> None:
        with self._changed:
            if self._stuck_of[job.owner] >= MAX_STUCK // 4:
                raise self._full(f"{self.name}: several jobs of this owner took too long and are still running")
            if refusal := self._queue.refusal(job):
                raise self._full(f"{self.name}: {refusal}")
            self._queue.add(job)
            try:
                self._find_thread()
            except RuntimeError:
                self._queue.discard(job)
                raise

    def _find_thread(self) -> None:
        """Wake or start a thread for queued work. The lock is held.

        Raises:
            RuntimeError: no thread can be started, and there is none.
        """
        spare = self.limits.threads - max(0, self._stuck - MAX_STUCK)
        if len(self._queue) > self._idle and self._threads < spare:
            try:
                threading.Thread(target=self._serve, name=f"headrace-{self.name}", daemon=True).start()
                self._threads += 1  # The new thread needs the lock, so it is counted before its first job.
            except RuntimeError:  # The existing threads will do it.
                if not self._threads:
                    raise
        self._changed.notify()

    def _abandon(self, job: Job[Any]) -> None:
        """The caller does not await the result any more: drop the job unless a piece is running."""
        with self._changed:
            job.wanted = False
            if self._queue.discard(job):
                job.drop()

    def _watch(self, job: Job[Any]) -> None:
        """Check the job again when its time may be over: it may start at any moment."""
        delay = min(self._time_left(job), self.limits.seconds)
        job.timer = asyncio.get_running_loop().call_later(delay, self._check, job)

    def _check(self, job: Job[Any]) -> None:
        """Fail a job that waits or runs for too long. Called in the event loop until the job has ended."""
        with self._changed:
            if job.ended:
                return
            if self._time_left(job) > 0:
                self._watch(job)
                return
            if job.begun is None:
                self._queue.discard(job)
                job.drop()
                job.fail(self._full(f"{self.name}: it waited in the queue for {self.limits.patience:g} s"))
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
        with suppress(RuntimeError):  # Queued jobs time out, or run on the next job's thread.
            self._find_thread()

    def _serve(self) -> None:
        """Run queued work until this thread is idle or surplus."""
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Run the next piece; True: this thread is needed for more."""
        job = self._next()
        return job is not None and self._done(job, more=job.step())

    def _next(self) -> Job[Any] | None:
        with self._changed:
            came = True
            while (job := self._queue.take(self._may)) is None:
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
        """Record the end of a piece; True: its thread is still needed."""
        with self._changed:
            assert job.begun is not None, "a piece that ended was started"
            self._mean += ((self._clock() - job.begun) - self._mean) / 8
            job.begun = None
            job.ended = not (more and job.wanted)
            if not job.ended:
                self._queue.add(job)
            stays = not job.stuck or self._recover(job)
            if not job.stuck:
                self._busy[job.owner] -= 1
                self._busy += Counter()
            self._find_thread()
        if more and job.ended:
            job.drop()
        return stays

    def _recover(self, job: Job[Any]) -> bool:
        """Record that a stuck job has ended after all; True: its thread rejoins the pool."""
        self._stuck -= 1
        self._stuck_of[job.owner] -= 1
        self._stuck_of += Counter()
        stays = self._threads < self.limits.threads
        self._threads += stays
        return stays

    def _full(self, text: str) -> ResourceExhausted:
        waiting = len(self._queue)
        delay = min(60.0, max(0.5, waiting * self._mean / self.limits.threads))
        return ResourceExhausted(
            f"{text}. Try again in {delay:.1f} s",
            retry_after=delay,
            waiting_ahead=waiting,
            max_waiting=self.limits.waiting,
        )


def _whole(work: Callable[..., _Result], arguments: tuple[Any, ...]) -> Generator[None, None, _Result]:
    """Wrap work as a generator of one piece."""
    yield from ()
    return work(*arguments)
