"""Drives the cpu backend's program by hand, as torch_sequences does the torch backend's decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from headrace_engine.backends.cpu.batch import CpuBatch
from headrace_engine.backends.cpu.loading import LoadedModel, load_model
from headrace_engine.core.runner import SequenceStep
from headrace_engine.native import Memory
from torch import Tensor

from support.backends.runners import plan_for, silent
from support.backends.torch_sequences import Lane, Lanes


@contextmanager
def cpu_model(path: Path | str, **changes: Any) -> Iterator[LoadedModel]:
    """Return the model with the cpu backend's weights, for two threads, 16 sequences and any length that tests use."""
    changes = {"max_batch": 16, "num_threads": 2, **changes}
    model = load_model(plan_for(path, **changes), silent)
    try:
        yield model
    finally:
        model.close()


class CpuLanes(Lanes):
    """Sequences over one pool of the cpu backend; see Lanes."""

    def open(self, model: LoadedModel, num_blocks: int) -> None:
        """See Lanes."""
        self._model = model
        assert self.block_size == model.program.shape.block_size
        pool = Memory(model.cpu.native, num_blocks * model.program.block_bytes)
        pool.view(0, pool.nbytes)[:] = 0xFF  # NaN in every float format.
        model.program.bind(pool, num_blocks)
        self._batch = CpuBatch(model.program.shape)

    def follow(self, lane: Lane, ids: Sequence[int]) -> Tensor:
        """See Lanes; one id after the other, as in decode."""
        for token_id in ids:
            lane.ids.append(token_id)
            self.step((lane, 1))
        return torch.stack(lane.scores[-len(ids) :])

    def logits(self, steps: Sequence[SequenceStep]) -> Tensor:
        """See Lanes."""
        self._batch.fill(steps)
        self._model.program.run(self._batch.struct)
        rows = self._batch.struct.num_logits
        return torch.from_numpy(self._model.program.value(self._model.logits, rows).copy())
