"""Rank 0 of a model that several ranks compute: starts the others, tells them each step, and ends with any of them."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from headrace_engine.backends.host import compute_threads
from headrace_engine.core.ranks import RankRunner, rank_step
from headrace_engine.core.runner import BlockCopies, Progress, Runner, Sampled, SequenceStep
from headrace_engine.errors import HeadraceError, Internal, in_words
from headrace_engine.ipc.commands import Shutdown
from headrace_engine.ipc.frames import BadMessage, FrameReader, Message, frame
from headrace_engine.ipc.messages import CoreFailed, RunnerSizes
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.ranks import (
    AllocateRank,
    JoinRanks,
    RankCommand,
    RankCopies,
    RankLoaded,
    RankPlan,
    RankSizes,
)
from headrace_engine.process.ends import manner
from headrace_engine.process.parent import spawn

_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.process.rank")
_CHUNK = 1 << 16
_GRACE = 1.0
"""Seconds that a rank may take to end; then it is killed, which frees what it holds just as well."""

_Answer = TypeVar("_Answer", bound=Message)


class RankedRunner(Runner):
    """Runs a model with the other ranks, each of which is a process that ends when this one does.

    An exchange that a rank does not make leaves the others waiting, or taking one for another. So after a failure
    inside a step, or the end of a rank, nothing is computed any more: the core ends, and its successor starts all
    ranks anew.

    Args:
        plan: of all ranks.
        make: makes the runner of rank 0 from its own plan.
    """

    def __init__(self, plan: CorePlan, make: Callable[[CorePlan], RankRunner]) -> None:
        self._plans = [_plan_of(rank, plan) for rank in range(plan.tensor_parallel)]
        self._make = make
        self._own: RankRunner | None = None
        self._others: list[Rank] = []
        self._lock = threading.Lock()
        self._noticed = threading.Event()
        self._closing = False

    @property
    def progress(self) -> int:
        """See Runner."""
        return 0 if self._own is None else self._own.progress

    def interrupt(self) -> None:
        """See Runner."""
        if self._own is not None:
            self._own.interrupt()

    def load(self, progress: Progress) -> None:
        """See Runner. All ranks import what they need, and load, at the same time."""
        for number, plan in enumerate(self._plans[1:], start=1):
            self._others.append(Rank(number, plan))
        threading.Thread(target=self._watch, name="rank-watch", daemon=True).start()
        self._own = own = self._make(self._plans[0])
        own.load(progress)
        self.idle_processors = own.idle_processors
        self.takes_all_at_once = own.takes_all_at_once
        self._expect(RankLoaded)

    def size(self) -> RunnerSizes:
        """See Runner. Bytes are those of all ranks together."""
        own = self._loaded
        place = own.meet()
        self._tell(JoinRanks(place))
        own.join(place)
        return _together([own.size(), *self._expect(RankSizes)])

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """See Runner."""
        self._tell(AllocateRank(num_blocks, num_host_blocks))
        self._loaded.allocate(num_blocks, num_host_blocks)

    def copy_blocks(self, copies: BlockCopies) -> None:
        """See Runner."""
        self._tell(RankCopies(list(copies.to_host), list(copies.to_pool), list(copies.within)))
        self._loaded.copy_blocks(copies)

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Runner."""
        if not steps:
            return []
        self._tell(rank_step(steps))
        try:
            return self._loaded.run(steps)
        except BaseException as error:
            self._noticed.wait(_GRACE)  # It may be the end of another rank that failed the exchange.
            self._lose(f"rank 0 of the model failed within a step: {in_words(error)}")
            raise

    def close(self) -> None:
        """See Runner. No rank outlives it."""
        with self._lock:
            self._closing = True
        for rank in self._others:
            with suppress(Internal):
                rank.send(Shutdown())
        for rank in self._others:
            rank.end()
        self._others.clear()
        if self._own is not None:
            self._own.close()

    @property
    def _loaded(self) -> RankRunner:
        if self._own is None:
            raise Internal("the model is not loaded")
        return self._own

    def _tell(self, command: RankCommand) -> None:
        """Send a command to all other ranks.

        Raises:
            Internal: one is lost.
        """
        if self.lost:
            raise Internal(self.lost)
        data = frame(command)
        for rank in self._others:
            rank.send_frame(data)

    def _expect(self, kind: type[_Answer]) -> list[_Answer]:
        """Wait for an answer of every other rank.

        Raises:
            HeadraceError: one failed, or ended. The others are ended then, so not all say why.
        """
        answers, errors = [], []
        for rank in self._others:
            try:
                answers.append(rank.expect(kind))
            except HeadraceError as error:
                errors.append(error)
        if errors:
            told = (error for error in errors if not isinstance(error, Internal))
            raise next(told, errors[0])
        return answers

    def _watch(self) -> None:
        """Wait for the end of a rank; then end the others, so that no exchange waits for it."""
        poll = select.poll()
        by_descriptor = {rank.descriptor: rank for rank in self._others}
        for descriptor in by_descriptor:
            poll.register(descriptor, 0)  # No events: a hang-up is always reported.
        ended = [by_descriptor[descriptor] for descriptor, _ in poll.poll()]
        self._lose(ended[0].last_words())
        self._noticed.set()

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._closing or self.lost:
                return
            self.lost = reason
            for rank in self._others:
                rank.kill()
            if self._own is not None:
                self._own.leave()


class Rank:
    """Another rank's process, started at once with its plan."""

    def __init__(self, number: int, plan: CorePlan) -> None:
        self._number = number
        self._process, self._socket = spawn(_PROGRAM)
        self._frames = FrameReader()
        self._received: deque[Message] = deque()
        self._reading = threading.Lock()
        self.send(RankPlan(plan, number))

    @property
    def descriptor(self) -> int:
        """Number of this end of its socket."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._process.pid

    def send(self, command: RankCommand) -> None:
        """Send a command.

        Raises:
            Internal: the rank is gone.
        """
        self.send_frame(frame(command))

    def send_frame(self, data: bytes) -> None:
        """Send an encoded command; see `send`."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Internal(self.last_words()) from error

    def expect(self, kind: type[_Answer]) -> _Answer:
        """Wait for an answer of this kind.

        Raises:
            HeadraceError: the rank failed, or ended.
        """
        with self._reading:
            while not self._received and self._read():
                pass
            answer = self._received.popleft() if self._received else None
        if isinstance(answer, CoreFailed):
            raise answer.error()
        if not isinstance(answer, kind):
            raise Internal(self.last_words())
        return answer

    def last_words(self) -> str:
        """Return how the rank ended, which closed its connection."""
        with self._reading, suppress(BadMessage):
            while self._read():
                pass
        failed = [answer.message for answer in self._received if isinstance(answer, CoreFailed)]
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        what = f"rank {self._number} of the model {manner(self._process.returncode)}"
        return f"{what}: {failed[0]}" if failed else what

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()

    def end(self) -> None:
        """Wait for the process to end, and kill it if that takes too long."""
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        self._socket.close()

    def _read(self) -> bool:
        """Read once, and wait for it; return False at the end of the stream."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            return False
        self._received += self._frames.feed(data)
        return bool(data)


def _plan_of(rank: int, plan: CorePlan) -> CorePlan:
    """Return a rank's plan, with its own device, if they are named, and its share of the threads."""
    threads = max(1, (plan.num_threads or compute_threads()) // plan.tensor_parallel)
    return replace(plan, device_list=plan.device_list[rank : rank + 1], num_threads=threads)


def _together(sizes: Sequence[RunnerSizes]) -> RunnerSizes:
    """Return the sizes of all ranks together: each block lies on all of them, so the smallest pool counts."""
    first = sizes[0]
    num_blocks = min(each.num_blocks for each in sizes)
    block_bytes = sum(each.kv_bytes // each.num_blocks for each in sizes if each.num_blocks)
    return replace(
        first,
        devices=tuple(device for each in sizes for device in each.devices),
        num_threads=sum(each.num_threads for each in sizes),
        max_length=min(each.max_length for each in sizes),
        num_blocks=num_blocks,
        weight_bytes=sum(each.weight_bytes for each in sizes),
        workspace_bytes=sum(each.workspace_bytes for each in sizes),
        kv_bytes=num_blocks * block_bytes,
        host_kv_bytes=sum(each.host_kv_bytes for each in sizes),
    )
