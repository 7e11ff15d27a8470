"""The rows of a step on the device, as the kernels read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.decode_tasks import TASK_WORDS, Array, DecodeTasks
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.staging import Words
from headrace_engine.backends.cuda.device.tables import UNIT, BlockTables
from headrace_engine.backends.cuda.layout import Layout, Sizes, aligned, captured_layout, layout_of
from headrace_engine.backends.torch import batch as torch_batches
from headrace_engine.backends.torch.attention import blocks_per_tile
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.models.ops import Batch

NOTHING_SAMPLED: Mapping[int, int] = {}
"""Sources of a step whose ids are all known on the host."""

_PADDING: Mapping[str, int] = {"slots": -1}
"""What fills up arrays that are longer than the step, if not 0: keys and values of such rows are not stored."""


class CudaBatch:
    """One step on the device.

    Args:
        arrays: the staged arrays of the step.
        tables: the block tables on the device.
        step: the same step on the host.
        layout: sizes of the arrays.
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
        several: the first of the sequences behind those with one row, and their number: int32 [2].
        layout: the given one.
        longest: maximum rows of a sequence.
        single: number of sequences with one row, which come first; in a captured step the most that there may be.
        prompts: the sequences behind those, on the host.
    """

    def __init__(
        self, arrays: Mapping[str, Tensor], tables: Tensor, step: Batch, layout: Layout, block_size: int
    ) -> None:
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
        self.several = arrays["several"]
        self.layout = layout
        self.longest = max(extent.length for extent in step.extents)
        self.single = layout.single
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
        self._layout = captured_layout(sizes.rows, sizes.sequences, tasks.lists)
        fixed = self._layout.places["tasks"].start
        changes = (UNIT + 2) * self._tables.most_units
        self._first = aligned(sizes.sequences)
        self._words = Words(device, self._first, fixed + aligned(most_tasks * TASK_WORDS) + changes)
        self._sampled = self._words.here[: sizes.sequences]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._words.here.nbytes + self._tables.here.nbytes

    def save_ids(self, sampled: Tensor) -> None:
        """Save the ids sampled by a step, int32 [rows of logits], for the next step; rows without one get any."""
        torch.clamp(sampled, min=0, out=self._sampled[: len(sampled)])

    def fill(
        self, batch: Batch, sources: Mapping[int, int] = NOTHING_SAMPLED, slot: int = 0, padded: int | None = None
    ) -> int:
        """Write a step to a slot, and enqueue the copy to the device.

        Args:
            sources: for each row whose id is only on the device, its index in the ids last passed to `save_ids`.
            padded: rows of the captured step that it is for, of any number of sequences; None: the step's own.

        Returns:
            The bytes sent.
        """
        of_step, lists_of = layout_of(batch, self.tasks.lists), self.tasks.lists
        self._layout = layout = of_step if padded is None else captured_layout(padded, self.sequences, lists_of)
        places, host = layout.places, self._words.host[slot]
        lengths, single = np.array([extent.length for extent in batch.extents]), of_step.single
        stored = np.array([extent.context for extent in batch.extents])
        rows, units = self._tables.place(
            (extent.blocks, -(-extent.context // self._block_size)) for extent in batch.extents
        )
        table_rows, firsts = np.array(rows), np.concatenate(([0], lengths.cumsum()))
        positions, slots = self._row_places(lengths, stored, table_rows, firsts)
        lists, tasks = self.tasks.share(stored[:single], table_rows[:single])
        arrays: dict[str, Sequence[int] | Array] = {
            "token_ids": batch.token_ids,
            "sources": self._first + np.arange(layout.rows),
            "positions": positions,
            "slots": slots,
            "firsts": firsts,
            "stored": stored,
            "table_rows": table_rows,
            "logits_rows": batch.logits_rows,
            "several": (single, of_step.several),
            "lists": lists.ravel(),
        }
        for name, values in arrays.items():
            end = places[name].start + len(values)
            host[places[name].start : end] = values
            host[end : places[name].stop] = _PADDING.get(name, 0)
        if sources:
            host[places["sources"]][list(sources)] = list(sources.values())
        end = places["tasks"].start + tasks.size
        host[places["tasks"]][: tasks.size] = tasks.ravel()
        return self._send(end, units, slot)

    def view(self, batch: Batch) -> CudaBatch:
        """Return the last filled step on the device, and enqueue the gathering of its ids."""
        staged = self._words.here[self._first :]
        arrays = {name: staged[place] for name, place in self._layout.places.items()}
        # The other arrays are views of the one buffer on the device, which the next step overwrites.
        arrays["token_ids"] = self._words.here.index_select(0, arrays["sources"])
        return CudaBatch(arrays, self._tables.here, batch, self._layout, self._block_size)

    def _row_places(self, lengths: Array, stored: Array, table_rows: Array, firsts: Array) -> tuple[Array, Array]:
        """Return the position and the slot of each row."""
        size, of_row = self._block_size, np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(of_row)) + (stored - lengths - firsts[:-1])[of_row]
        blocks = self._tables.host[table_rows[of_row], positions // size]
        return positions, blocks * size + positions % size

    def _send(self, end: int, units: Sequence[int], slot: int) -> int:
        """Send a step's words, with what changed in tables behind them; return the bytes."""
        first, count = aligned(end), len(units)
        if not count:
            return self._words.send(end, slot).nbytes
        last = first + UNIT * count
        host = self._words.host[slot]
        host[first:last] = self._tables.units(units).ravel()
        host[last : last + 2 * count].reshape(count, 2)[:] = np.stack((np.arange(count), units), 1)
        sent = self._words.send(last + 2 * count, slot)
        self._tables.write(sent[first:last].view(count, UNIT), sent[last:].view(count, 2))
        return sent.nbytes
