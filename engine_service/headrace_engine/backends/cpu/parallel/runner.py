"""The runner of one rank of the cpu backend."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace_engine.backends.cpu.loading import LoadedModel, load_model
from headrace_engine.backends.cpu.parallel.share import CpuShare
from headrace_engine.backends.cpu.runner import CpuRunner
from headrace_engine.backends.extra_outputs import scored_rows
from headrace_engine.backends.processors import NO_PROCESSES, Process
from headrace_engine.core.ranks import RankRunner
from headrace_engine.core.runner import Progress, SequenceStep
from headrace_engine.errors import Internal
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.native import Exchange, exchange_bytes


class CpuRank(CpuRunner, RankRunner):
    """Runs a rank's share of a decoder with the native library.

    Ranks exchange through a file in memory, which rank 0 makes; the others open it by its place in /proc.

    Args:
        rank: its number; 0 samples.
    """

    def __init__(self, plan: CorePlan, rank: int, processes: Mapping[str, Process] = NO_PROCESSES) -> None:
        # What changes logits is rank 0's.
        super().__init__(plan if rank == 0 else replace(plan, logits_processors=()), processes)
        self._share = CpuShare(rank, plan.tensor_parallel, plan.tensor_parallel_mode)
        self._file: int | None = None  # Rank 0's: open until close(), since the others open it by its number.
        self._exchange: Exchange | None = None

    def meet(self) -> str:
        """See RankRunner."""
        model = self._loaded
        self._file = os.memfd_create("headrace-ranks")
        os.ftruncate(self._file, exchange_bytes(model.cpu.native, self._share.size, model.part_bytes))
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def join(self, place: str) -> None:
        """See RankRunner. The first exchange waits for all."""
        model, share = self._loaded, self._share
        try:
            file = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise Internal(f"rank {share.rank} of the model cannot open {place}: {error.strerror}") from error
        try:
            self._exchange = Exchange(model.cpu.native, file, share.rank, share.size, model.part_bytes)
        finally:
            os.close(file)
        for program in model.programs:
            program.join(self._exchange)

    def interrupt(self) -> None:
        """See Runner. A rank that hangs would be waited for."""
        self.leave()

    def leave(self) -> None:
        """See RankRunner."""
        if self._exchange is not None:
            self._exchange.leave()

    def follow(self, steps: Sequence[SequenceStep]) -> None:
        """See RankRunner."""
        if self._batch is None:
            raise Internal("follow() before allocate()")
        model = self._loaded
        self._batch.fill(steps)
        model.program.run(self._batch.struct)
        states = model.program.value(model.recorded.states, sum(len(step.token_ids) for step in steps))
        for rows in scored_rows(steps, model.scorer.rows):
            model.scorer.follow(states[rows])

    def close(self) -> None:
        """See Runner. Closing twice is allowed."""
        super().close()  # First: its programs exchange through this memory.
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _load_model(self, progress: Progress, processes: Mapping[str, Process]) -> LoadedModel:
        """See CpuRunner."""
        return load_model(self._plan, progress, processes, share=self._share)
