"""The rows of a step on the device, as the kernels read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.decode_tasks import TASK_WORDS, Array, DecodeTasks
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.staging import Words
from headrace_engine.backends.cuda.device.tables import UNIT, BlockTables
from headrace_engine.backends.torch import batch as torch_batches
from headrace_engine.backends.torch.attention import blocks_per_tile
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.models.ops import Batch

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
        arrays: the staged arrays of the step.
        tables: the block tables on the device.
        step: the same step on the host.
        block_size: tokens per block.

    Attributes:
        token_ids, positions, slots: per row, int32 [rows]; a slot is block · block_size + offset.
        firsts: the first row of each sequence, then the number of rows: int32 [sequences + 1].
        stored: tokens of each sequence in the pool after the step, int32 [sequences].
        tables: block tables, int32 [rows of tables, blocks]; set only as far as `stored` reaches.
        table_rows: the row of each sequence's table, int32 [sequences].
        lists: for each list of decode tasks, its first task and their number: int32 [lists, 2].
        tasks: all decode tasks of the sequences with one row: CoreDecodeTask, as int32.
        logits_rows: rows whose logits are computed, int32 [logits].
        longest: maximum rows of a sequence.
        single: number of sequences with one row, which come first.
        prompts: the sequences behind those, on the host.
    """

    def __init__(self, arrays: Mapping[str, Tensor], tables: Tensor, step: Batch, block_size: int) -> None:
        self.token_ids = arrays["token_ids"]
        self.positions = arrays["positions"]
        self.slots = arrays["slots"]
        self.firsts = arrays["firsts"]
        self.stored = arrays["stored"]
        self.tables = tables
        self.table_rows = arrays["table_rows"]
        self.lists = arrays["lists"].view(-1, 2)
        self.tasks = arrays["tasks"]
        self.logits_rows = arrays["logits_rows"]
        lengths = [extent.length for extent in step.extents]
        self.longest = max(lengths)
        self.single = single_rows(lengths)
        self.prompts = step.extents[self.single :]
        self._step = step
        self._block_size = block_size

    @cached_property
    def prompts_begin(self) -> bool:
        """True if the sequences behind the single rows have no tokens in the pool before this step."""
        return all(extent.start == 0 for extent in self.prompts)

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


def single_rows(lengths: Sequence[int]) -> int:
    """Return the number of sequences in front that have one row each."""
    return next((number for number, length in enumerate(lengths) if length > 1), len(lengths))


class StepStaging:
    """Uploads steps to the device, one after the other. Ids that are still being sampled stay on the device.

    Args:
        device: the target.
        sizes: sizes of the largest step.
        tasks: shares out decode attention.

    Attributes:
        tasks: the given one.
        sequences: maximum sequences of a step.
    """

    def __init__(self, device: Device, sizes: Sizes, tasks: DecodeTasks) -> None:
        self._block_size = sizes.block_size
        self.sequences = sizes.sequences
        self.tasks = tasks
        self._tables = BlockTables(device, sizes.sequences, sizes.blocks)
        most_tasks = sizes.sequences * tasks.most_parts * tasks.lists
        fixed = _places(sizes.rows, sizes.sequences, sizes.sequences, tasks.lists)["tasks"].start
        changes = (UNIT + 2) * self._tables.most_units
        self._first = _aligned(sizes.sequences)
        self._words = Words(device, self._first, fixed + _aligned(most_tasks * TASK_WORDS) + changes)
        self._sampled = self._words.here[: sizes.sequences]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._words.here.nbytes + self._tables.here.nbytes

    def save_ids(self, sampled: Tensor) -> None:
        """Save the ids sampled by a step, int32 [rows of logits], for the next step; rows without one get any."""
        torch.clamp(sampled, min=0, out=self._sampled[: len(sampled)])

    def fill(self, batch: Batch, sources: Mapping[int, int] = NOTHING_SAMPLED, slot: int = 0) -> int:
        """Write a step to a slot, and enqueue the copy to the device.

        Args:
            sources: for each row whose id is only on the device, its index in the ids last passed to `save_ids`.

        Returns:
            The bytes sent.
        """
        places, host = self._step_places(batch), self._words.host[slot]
        rows_of = [extent.length for extent in batch.extents]
        lengths, single = np.array(rows_of), single_rows(rows_of)
        stored = np.array([extent.context for extent in batch.extents])
        rows, units = self._tables.place(
            (extent.blocks, -(-extent.context // self._block_size)) for extent in batch.extents
        )
        table_rows, firsts = np.array(rows), np.concatenate(([0], lengths.cumsum()))
        positions, slots = self._row_places(lengths, stored, table_rows, firsts)
        lists, tasks = self.tasks.share(stored[:single], table_rows[:single])
        arrays = {
            "token_ids": batch.token_ids,
            "sources": self._first + np.arange(len(batch.token_ids)),
            "positions": positions,
            "slots": slots,
            "firsts": firsts,
            "stored": stored,
            "table_rows": table_rows,
            "logits_rows": batch.logits_rows,
            "lists": lists.ravel(),
        }
        for name, values in arrays.items():
            host[places[name]] = values
        if sources:
            host[places["sources"]][list(sources)] = list(sources.values())
        end = places["tasks"].start + tasks.size
        host[places["tasks"]][: tasks.size] = tasks.ravel()
        return self._send(end, units, slot)

    def view(self, batch: Batch) -> CudaBatch:
        """Return the last filled step on the device, and enqueue the gathering of its ids."""
        staged = self._words.here[self._first :]
        arrays = {name: staged[place] for name, place in self._step_places(batch).items()}
        # The other arrays are views of the one buffer on the device, which the next step overwrites.
        arrays["token_ids"] = self._words.here.index_select(0, arrays["sources"])
        return CudaBatch(arrays, self._tables.here, batch, self._block_size)

    def _step_places(self, batch: Batch) -> dict[str, slice]:
        return _places(len(batch.token_ids), len(batch.extents), len(batch.logits_rows), self.tasks.lists)

    def _row_places(self, lengths: Array, stored: Array, table_rows: Array, firsts: Array) -> tuple[Array, Array]:
        """Return the position and the slot of each row."""
        size, of_row = self._block_size, np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(of_row)) + (stored - lengths - firsts[:-1])[of_row]
        blocks = self._tables.host[table_rows[of_row], positions // size]
        return positions, blocks * size + positions % size

    def _send(self, end: int, units: Sequence[int], slot: int) -> int:
        """Send a step's words, with what changed in tables behind them; return the bytes."""
        first, count = _aligned(end), len(units)
        if not count:
            return self._words.send(end, slot).nbytes
        last = first + UNIT * count
        host = self._words.host[slot]
        host[first:last] = self._tables.units(units).ravel()
        host[last : last + 2 * count].reshape(count, 2)[:] = np.stack((np.arange(count), units), 1)
        sent = self._words.send(last + 2 * count, slot)
        self._tables.write(sent[first:last].view(count, UNIT), sent[last:].view(count, 2))
        return sent.nbytes


def _places(rows: int, sequences: int, logits: int, lists: int) -> dict[str, slice]:
    """Return where a step's arrays are among its words, in the order of sending; equal steps are laid out alike."""
    lengths = {
        "token_ids": rows,
        "sources": rows,
        "positions": rows,
        "slots": rows,
        "firsts": sequences + 1,
        "stored": sequences,
        "table_rows": sequences,
        "logits_rows": logits,
        "lists": 2 * lists,
    }
    places, end = {}, 0
    for name, length in lengths.items():
        places[name] = slice(end, end + length)
        end = _aligned(end + length)
    return {**places, "tasks": slice(end, None)}


def _aligned(words: int) -> int:
    """Return the next multiple of 16 bytes."""
    return -(-words // 4) * 4
