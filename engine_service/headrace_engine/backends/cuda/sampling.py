"""Sampling on the device: one kernel samples a token for each row of logits, and one copy fetches the results."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.in_flight import DEPTH
from headrace_engine.backends.cuda.device.staging import Staging
from headrace_engine.backends.sampling_structs import ROW_BYTES, SamplingStructs
from headrace_engine.backends.torch.sampling.sampler import sample as sample_rows
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.native import Dtype
from headrace_engine.native import Sampled as SampledStruct
from headrace_engine.native.abi import SampleRows
from headrace_engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    _Array = array[int] | array[float]

_GREEDY = SamplingParams(temperature=0)
_NOTHING = SequenceStep((0,), 0, (0,))
_NO_CHANGES = LogitChanges()
_NO_IDS = array("I", [0])
"""Mask that allows no id: an empty array would allow all."""
_ALIGNMENT = 8
_ARRAYS = 6
"""Number of arrays in CoreLogitChanges."""

SampledRow = tuple[int, SequenceStep]
"""Index of a row of logits, and the step that samples from it."""


class DeviceSampler:
    """Samples for steps, one after the other. Slots are those of Staging.

    Args:
        device: the device that holds the logits.
        rows: maximum rows of logits in a step.
        vocab: number of logits per row.

    Attributes:
        ids: sampled by the last step, int32 [rows]; negative for rows without one.
    """

    def __init__(self, device: Device, rows: int, vocab: int) -> None:
        self._device = device
        self._vocab = vocab
        shapes = {name: ((rows, size), np.uint8) for name, size in ROW_BYTES.items()}
        self._staging = Staging(device, {name: shapes.pop(name) for name in ("changes", "sampling")})
        self._arrays = _Arrays(device, rows * (vocab // 8 + 1024))
        self._scratch = torch.empty(rows, vocab, dtype=torch.float32, device=device.torch)
        self._results = Staging(device, shapes)
        self.ids: Tensor | None = self._results.here["sampled"].view(torch.int32)[:, SampledStruct.token.offset // 4]
        slots = zip(self._staging.host, self._results.host, strict=True)
        self._slots = [SamplingStructs(**written, **read, vocab=vocab) for written, read in slots]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._staging.nbytes + self._results.nbytes + self._scratch.nbytes + self._arrays.nbytes

    def fill(self, sampled_rows: Sequence[SampledRow], rows: int, slot: int = 0) -> None:
        """Write the sampling parameters of rows to a slot, and enqueue the copy to the device.

        Rows without a step sample an arbitrary token.
        """
        structs = self._slots[slot]
        for row in set(range(rows)).difference(row for row, _ in sampled_rows):
            structs.pack_sampling(row, _NOTHING, _GREEDY, 0)
        changing = {row: _arrays_of(step) for row, step in sampled_rows if step.masked_ids or step.changes is not None}
        # For all rows at once: growing later would move arrays whose addresses are in structs already.
        self._arrays.reserve(sum(_size(each) for arrays in changing.values() for each in arrays), slot)
        for row, step in sampled_rows:
            changes = self._change(row, step, changing[row], slot) if row in changing else 0
            structs.pack_sampling(row, step, step.sampling or _GREEDY, changes)
        self._arrays.send()
        self._staging.send("sampling", rows, slot)

    def sample(self, logits: Tensor) -> None:
        """Enqueue sampling of the rows that were filled in; logits is bfloat16 [rows, vocab]."""
        args = SampleRows(
            logits=logits.data_ptr(),
            sampling=self._staging.here["sampling"].data_ptr(),
            scratch=self._scratch.data_ptr(),
            **{name: tensor.data_ptr() for name, tensor in self._results.here.items()},
            rows=len(logits),
            vocab=self._vocab,
            dtype=Dtype.BFLOAT16,
        )
        self._device.launch("sample_rows", args)

    def fetch(self, sampled_rows: Sequence[SampledRow], slot: int) -> None:
        """Enqueue the copy of the rows' results to a slot; of their most likely ids only if one asks for some."""
        rows = max((row for row, _ in sampled_rows), default=-1) + 1
        listed = any(step.sampling is not None and step.sampling.top_logprobs for _, step in sampled_rows)
        for name in self._results.here if listed else ("sampled",):
            self._results.fetch(name, rows, slot)

    def sampled(self, sampled_rows: Sequence[SampledRow], slot: int) -> Iterator[Sampled]:
        """Yield the results; the copy of `fetch` must be complete."""
        rows = ((row, step.sampling or _GREEDY) for row, step in sampled_rows)
        return self._slots[slot].sampled(rows)

    def _change(self, row: int, step: SequenceStep, arrays: Sequence[_Array], slot: int) -> int:
        """Write the logit changes of a row; return the device address of their struct."""
        addresses = [self._arrays.add(each) for each in arrays]
        words = 0 if len(addresses) < _ARRAYS else len(arrays[-1])
        addresses += [0] * (_ARRAYS - len(addresses))
        changes = step.changes or _NO_CHANGES
        self._slots[slot].pack_changes(row, changes, len(step.masked_ids), addresses, words)
        return self._staging.here["changes"][row].data_ptr()


class PlainSampler:
    """Replaces DeviceSampler by torch operators. It waits for the device, so no step can be captured."""

    nbytes = 0

    def __init__(self) -> None:
        self.ids: Tensor | None = None
        self._logits: Tensor | None = None

    def fill(self, sampled_rows: Sequence[SampledRow], rows: int, slot: int = 0) -> None:
        """See DeviceSampler. Send nothing."""

    def sample(self, logits: Tensor) -> None:
        """See DeviceSampler. Retain the logits until `sampled`."""
        self._logits = logits

    def fetch(self, sampled_rows: Sequence[SampledRow], slot: int) -> None:
        """See DeviceSampler. Copy nothing."""

    def sampled(self, sampled_rows: Sequence[SampledRow], slot: int) -> Iterator[Sampled]:
        """See DeviceSampler. Sample now."""
        if sampled_rows:
            assert self._logits is not None, "sampled() before sample()"
            yield from sample_rows(self._logits, [step for _, step in sampled_rows])


class _Arrays:
    """Contiguous arrays of one step, in buffers that grow as needed."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self._slot = self._end = 0
        self._pinned = [device.pinned(nbytes) for _ in range(DEPTH)]
        self._here = self._allocated(nbytes)

    @property
    def nbytes(self) -> int:
        return self._here.nbytes

    def reserve(self, nbytes: int, slot: int) -> None:
        """Start filling a slot, and grow its buffers to at least nbytes."""
        self._slot, self._end = slot, 0
        # Both may be replaced: the slot's previous step was waited for, and torch reuses device memory in stream order.
        if nbytes > len(self._pinned[slot]):
            self._pinned[slot] = self._device.pinned(2 * nbytes)
        if nbytes > len(self._here):
            self._here = self._allocated(2 * nbytes)
        self._host = self._pinned[slot].numpy().data

    def add(self, values: _Array) -> int:
        """Append values; return their address on the device."""
        first, self._end = self._end, self._end + _size(values)
        self._host[first : first + len(values) * values.itemsize] = memoryview(values).cast("B")
        return self._here.data_ptr() + first

    def send(self) -> None:
        """Enqueue the copy of all arrays to the device."""
        if self._end:
            self._here[: self._end].copy_(self._pinned[self._slot][: self._end], non_blocking=True)

    def _allocated(self, nbytes: int) -> Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8, device=self._device.torch)


def _size(values: _Array) -> int:
    return -(-len(values) * values.itemsize // _ALIGNMENT) * _ALIGNMENT


def _arrays_of(step: SequenceStep) -> list[_Array]:
    """Return the arrays of logit changes: penalized, penalties, biased, biases, masked, and allowed unless all are."""
    changes = step.changes or _NO_CHANGES
    arrays: list[_Array] = [
        changes.penalized,
        changes.penalties,
        changes.biased,
        changes.biases,
        array("i", step.masked_ids),
    ]
    return arrays if changes.allowed is None else [*arrays, changes.allowed or _NO_IDS]
