"""Rank 0 of a model that several ranks compute: starts the others, tells them each step, and ends with any of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from headrace_proto.pure.faults import is_fault

from headrace_engine.backends.host import compute_threads
from headrace_engine.core.adapters import why_not
from headrace_engine.core.ranks import RankRunner, rank_step
from headrace_engine.core.runner import BlockCopies, Progress, Runner, Sampled, SequenceStep
from headrace_engine.errors import BadModel, HeadraceError, Internal, in_words
from headrace_engine.ipc.commands import Shutdown
from headrace_engine.ipc.frames import frame
from headrace_engine.ipc.messages import CoreFailed, RunnerSizes
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.ipc.ranks import (
    AllocateRank,
    DropRankAdapter,
    JoinRanks,
    LoadRankAdapter,
    RankAdapterLoaded,
    RankCommand,
    RankCopies,
    RankLoaded,
    RankSizes,
    ReadRankAdapter,
)
from headrace_engine.process.rank_link import Answer, RankLink
from headrace_engine.process.rank_watch import watch

_GRACE = 1.0
"""Seconds to wait for the news that another rank is lost."""


class RankedRunner(Runner):
    """Runs a model with the other ranks, each of which is a process that ends when this one does.

    An exchange that a rank does not make leaves the others waiting, or taking one for another. So after a failure
    inside a step, or the loss of a rank, nothing is computed any more: the core ends, and its successor starts all
    ranks anew. A rank that hangs is as lost as one that ended, from its start on.

    Args:
        plan: of all ranks.
        make: makes the runner of rank 0 from its own plan.
    """

    def __init__(self, plan: CorePlan, make: Callable[[CorePlan], RankRunner]) -> None:
        self._limit = plan.core_ping_limit
        self._plans = [_plan_of(rank, plan) for rank in range(plan.tensor_parallel)]
        self._make = make
        self._own: RankRunner | None = None
        self._others: list[RankLink] = []
        # Guards `lost` and `_closing`: once it is closing, the thread that watches the ranks kills and reads none.
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
            self._others.append(RankLink(number, plan))
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
        with self._exchanging():
            own.join(place)
            sizes = own.size()
        return _together([sizes, *self._expect(RankSizes)])

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """See Runner."""
        self._tell(AllocateRank(num_blocks, num_host_blocks))
        self._loaded.allocate(num_blocks, num_host_blocks)

    def read_adapter(self, plan: AdapterPlan) -> Callable[[], None]:
        """See Runner. The other ranks read it too before it is loaded, so that no step waits for their files."""
        load = self._loaded.read_adapter(plan)
        self._tell(ReadRankAdapter(plan))
        errors = [error for rank in tuple(self._others) if (error := rank.adapter_read(plan.number))]
        if errors:
            self._tell(DropRankAdapter(plan.number))
            raise BadModel(errors[0])
        return lambda: self._load_adapter(plan.number, load)

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
            with self._exchanging():
                return self._loaded.run(steps)
        except BaseException as error:
            text = f"rank 0 of the model failed within a step: {in_words(error)}"
            self._lose(CoreFailed("ENGINE_FAULT", text))
            raise

    def close(self) -> None:
        """See Runner. No rank outlives it."""
        with self._lock:
            self._closing = True
        for rank in self._others:
            with suppress(HeadraceError):
                rank.send(Shutdown())
        for rank in self._others:
            rank.end()
        self._others.clear()
        if self._own is not None:
            self._own.close()

    def _load_adapter(self, number: int, load: Callable[[], None]) -> None:
        self._tell(LoadRankAdapter(number))
        errors = [why_not(load), *(answer.error for answer in self._expect(RankAdapterLoaded))]
        if any(errors):
            raise BadModel(next(filter(None, errors)))

    @property
    def _loaded(self) -> RankRunner:
        if self._own is None:
            raise Internal("the model is not loaded")
        return self._own

    def _tell(self, command: RankCommand) -> None:
        """Send a command to all other ranks.

        Raises:
            HeadraceError: one is lost.
        """
        if self.lost is not None:
            raise self.lost.error()
        data = frame(command)
        for rank in self._others:
            rank.send_frame(data)

    def _expect(self, kind: type[Answer]) -> list[Answer]:
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
            raise next(told, errors[0] if self.lost is None else self.lost.error())
        return answers

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Raise the loss of another rank in place of the failure of an exchange with it."""
        try:
            yield
        except BaseException as error:
            self._noticed.wait(_GRACE)
            if is_fault(error) and self.lost is not None:
                raise self.lost.error() from error
            raise

    def _watch(self) -> None:
        """Wait for the loss of a rank; then end the others, so that no exchange waits for it."""
        self._lose(watch(tuple(self._others), self._limit, self._own_progress))
        self._noticed.set()

    def _own_progress(self) -> int:
        with self._lock:
            return 0 if self._closing else self.progress

    def _lose(self, failed: CoreFailed) -> None:
        with self._lock:
            if self._closing or self.lost is not None:
                return
            self.lost = failed
            for rank in self._others:
                rank.kill()
            if self._own is not None:
                self._own.leave()


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
