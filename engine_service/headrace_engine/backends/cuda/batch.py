"""The rows of a step on the device, as the kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.staging import Staging
from headrace_engine.backends.torch import batch as torch_batches
from headrace_engine.backends.torch.attention import blocks_per_tile
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.models.decoder import Batch

NOTHING_SAMPLED: Mapping[int, int] = {}
"""Sources of a step whose ids are all known on the host."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the largest step.

    Attributes:
        rows: number of tokens.
        sequences: number of sequences, each with at most one row of logits.
        blocks: entries per block table.
        block_size: tokens per block.
    """

    rows: int
    sequences: int
    blocks: int
    block_size: int


class CudaBatch:
    """One step on the device.

    Args:
        arrays: views of the staged arrays, cut to the step.
        step: the same step on the host.
        block_size: tokens per block.

    Attributes:
        token_ids, positions, slots: per row, int32 [rows]; a slot is block · block_size + offset.
        firsts: the first row of each sequence, then the number of rows: int32 [sequences + 1].
        stored: tokens of each sequence in the pool after the step, int32 [sequences].
        tables: block tables, int32 [sequences, blocks]; set only as far as `stored` reaches.
        logits_rows: rows whose logits are computed, int32 [logits].
        longest: maximum rows of a sequence.
        single: number of sequences with one row, which come first.
    """

    def __init__(self, arrays: Mapping[str, Tensor], step: Batch, block_size: int) -> None:
        self.token_ids = arrays["token_ids"]
        self.positions = arrays["positions"]
        self.slots = arrays["slots"]
        self.firsts = arrays["firsts"]
        self.stored = arrays["stored"]
        self.tables = arrays["tables"]
        self.logits_rows = arrays["logits_rows"]
        lengths = [extent.length for extent in step.extents]
        self.longest = max(lengths)
        self.single = next((number for number, length in enumerate(lengths) if length > 1), len(lengths))
        self._step = step
        self._block_size = block_size

    @cached_property
    def prompts_begin(self) -> bool:
        """True if the sequences behind the single rows have no tokens in the pool before this step."""
        return all(extent.start == 0 for extent in self._step.extents[self.single :])

    @cached_property
    def prompt_firsts(self) -> Tensor:
        """`firsts` of the sequences behind the single rows, relative to the first of their rows."""
        return self.firsts[self.single :] - self.single

    @cached_property
    def adapters(self) -> dict[int, Tensor]:
        """The rows of each adapter, by its number."""
        return torch_batches.adapter_rows(self._step.extents, self.token_ids.device)

    @cached_property
    def plain(self) -> TorchBatch:
        """The batch as plain torch ops take it, built on first use."""
        size = self._block_size
        return torch_batches.prepare(self._step, size, blocks_per_tile(size), self.token_ids.device)


class StepStaging:
    """Uploads steps to the device, one after the other. Ids that are still being sampled stay on the device.

    Args:
        device: the target.
        sizes: sizes of the largest step.
    """

    def __init__(self, device: Device, sizes: Sizes) -> None:
        rows, sequences = sizes.rows, sizes.sequences
        self._block_size = sizes.block_size
        self._staging = Staging(
            device,
            {
                "token_ids": ((rows,), np.int32),
                "sources": ((rows,), np.int32),
                "positions": ((rows,), np.int32),
                "slots": ((rows,), np.int32),
                "firsts": ((sequences + 1,), np.int32),
                "stored": ((sequences,), np.int32),
                "logits_rows": ((sequences,), np.int32),
                "tables": ((sequences, sizes.blocks), np.int32),
                "sampled": ((sequences,), np.int32),
            },
        )
        self._sampled = self._staging.here["sampled"]
        self._known, self._unknown = map(self._staging.first_word, ("token_ids", "sampled"))

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._staging.nbytes

    def save_ids(self, sampled: Tensor) -> None:
        """Save the ids sampled by a step, int32 [rows of logits], for the next step; rows without one get any."""
        torch.clamp(sampled, min=0, out=self._sampled[: len(sampled)])

    def fill(self, batch: Batch, sources: Mapping[int, int] = NOTHING_SAMPLED, slot: int = 0) -> None:
        """Write a step to a slot, and enqueue the copy to the device.

        Args:
            sources: for each row whose id is only on the device, its index in the ids last passed to `save_ids`.
        """
        host, size = self._staging.host[slot], self._block_size
        rows, sequences = len(batch.token_ids), len(batch.extents)
        host["token_ids"][:rows] = batch.token_ids
        host["sources"][:rows] = range(self._known, self._known + rows)
        if sources:
            host["sources"][list(sources)] = np.add(list(sources.values()), self._unknown)
        positions = host["positions"][:rows]
        positions[:] = batch.positions
        host["firsts"][: sequences + 1] = [0, *accumulate(extent.length for extent in batch.extents)]
        host["stored"][:sequences] = [extent.context for extent in batch.extents]
        host["logits_rows"][: len(batch.logits_rows)] = batch.logits_rows
        tables = host["tables"]
        for number, extent in enumerate(batch.extents):
            used = -(-extent.context // size)
            tables[number, :used] = extent.blocks[:used]
        of_row = np.repeat(np.arange(sequences), [extent.length for extent in batch.extents])
        host["slots"][:rows] = tables[of_row, positions // size] * size + positions % size
        self._staging.send("tables", sequences, slot)

    def view(self, batch: Batch) -> CudaBatch:
        """Return the last filled step on the device, and enqueue the gathering of its ids."""
        rows, sequences, logits = len(batch.token_ids), len(batch.extents), len(batch.logits_rows)
        lengths = {"firsts": sequences + 1, "stored": sequences, "tables": sequences, "logits_rows": logits}
        arrays = {name: array[: lengths.get(name, rows)] for name, array in self._staging.here.items()}
        arrays["token_ids"] = self._staging.words().index_select(0, arrays["sources"])
        return CudaBatch(arrays, batch, self._block_size)
