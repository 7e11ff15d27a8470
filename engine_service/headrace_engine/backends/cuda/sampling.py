"""Drawing on the device: one kernel draws a token for each row of logits, and one copy brings back what was drawn."""

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
from headrace_engine.backends.draw_structs import ROW_BYTES, DrawStructs
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.core.runner import LogitChanges, Sampled, SequenceStep
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
"""What allows no id: an empty array would allow all."""
_ALIGNMENT = 8
_PLACES = 6
"""Arrays of CoreLogitChanges."""

Draw = tuple[int, SequenceStep]
"""Number of a row of logits, and the step that draws from it."""


class Drawing:
    """Draws for steps, one after the other. A slot is one of Staging.

    Args:
        device: where the logits are.
        rows: of logits in the largest step.
        vocab: ids of a row.

    Attributes:
        ids: what was drawn last, int32 [rows]; negative where nothing was.
    """

    def __init__(self, device: Device, rows: int, vocab: int) -> None:
        self._device = device
        self._vocab = vocab
        shapes = {name: ((rows, size), np.uint8) for name, size in ROW_BYTES.items()}
        self._staging = Staging(device, {name: shapes.pop(name) for name in ("changes", "sampling")})
        self._arrays = _Arrays(device, rows * (vocab // 8 + 1024))
        self._room = torch.empty(rows, vocab, dtype=torch.float32, device=device.torch)
        self._results = Staging(device, shapes)
        self.ids: Tensor | None = self._results.here["sampled"].view(torch.int32)[:, SampledStruct.token.offset // 4]
        slots = zip(self._staging.host, self._results.host, strict=True)
        self._slots = [DrawStructs(**written, **read, vocab=vocab) for written, read in slots]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._staging.nbytes + self._results.nbytes + self._room.nbytes + self._arrays.nbytes

    def fill(self, draws: Sequence[Draw], rows: int, slot: int = 0) -> None:
        """Write how rows are drawn to a slot, and enqueue the copy to the device.

        Rows that nobody draws from give any token.
        """
        structs = self._slots[slot]
        for row in set(range(rows)).difference(row for row, _ in draws):
            structs.pack_sampling(row, _NOTHING, _GREEDY, 0)
        changing = {row: _arrays_of(step) for row, step in draws if step.masked_ids or step.changes is not None}
        self._arrays.reserve(sum(_size(each) for arrays in changing.values() for each in arrays), slot)
        for row, step in draws:
            changes = self._change(row, step, changing[row], slot) if row in changing else 0
            structs.pack_sampling(row, step, step.sampling or _GREEDY, changes)
        self._arrays.send()
        self._staging.send("sampling", rows, slot)

    def draw(self, logits: Tensor) -> None:
        """Enqueue the drawing from rows that were filled in."""
        args = SampleRows(
            logits=logits.data_ptr(),
            sampling=self._staging.here["sampling"].data_ptr(),
            room=self._room.data_ptr(),
            **{name: tensor.data_ptr() for name, tensor in self._results.here.items()},
            rows=len(logits),
            vocab=self._vocab,
            dtype=Dtype.BFLOAT16,
        )
        self._device.launch("sample_rows", args)

    def fetch(self, slot: int) -> None:
        """Enqueue the copy of what was drawn to a slot."""
        self._results.fetch(slot)

    def drawn(self, draws: Sequence[Draw], slot: int) -> Iterator[Sampled]:
        """What was drawn, once the device has come so far."""
        rows = ((row, step.sampling or _GREEDY) for row, step in draws)
        return self._slots[slot].drawn(rows)

    def _change(self, row: int, step: SequenceStep, arrays: Sequence[_Array], slot: int) -> int:
        """Where the device finds what is done to a row of logits."""
        places = [self._arrays.add(each) for each in arrays]
        words = 0 if len(places) < _PLACES else len(arrays[-1])
        places += [0] * (_PLACES - len(places))
        changes = step.changes or _NO_CHANGES
        self._slots[slot].pack_changes(row, changes, len(step.masked_ids), places, words)
        return self._staging.here["changes"][row].data_ptr()


class PlainDrawing:
    """Draws by torch's operators, in place of Drawing. It waits for the device, so that no step can be captured."""

    nbytes = 0

    def __init__(self) -> None:
        self.ids: Tensor | None = None
        self._logits: Tensor | None = None

    def fill(self, draws: Sequence[Draw], rows: int, slot: int = 0) -> None:
        """See Drawing. Nothing is sent beforehand."""

    def draw(self, logits: Tensor) -> None:
        """See Drawing. Kept until `drawn`."""
        self._logits = logits

    def fetch(self, slot: int) -> None:
        """See Drawing. Nothing is there to be copied."""

    def drawn(self, draws: Sequence[Draw], slot: int) -> Iterator[Sampled]:
        """See Drawing. Draws."""
        if draws:
            assert self._logits is not None, "drawn() before draw()"
            yield from sample(self._logits, [step for _, step in draws])


class _Arrays:
    """Arrays of one step, one behind the other, in memory that grows where a step needs more."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self._slot = self._end = 0
        self._pinned = [device.pinned(nbytes) for _ in range(DEPTH)]
        self._here = self._made(nbytes)

    @property
    def nbytes(self) -> int:
        return self._here.nbytes

    def reserve(self, nbytes: int, slot: int) -> None:
        """Begin anew in a slot, with room for so much."""
        self._slot, self._end = slot, 0
        if nbytes > len(self._pinned[slot]):
            self._pinned[slot] = self._device.pinned(2 * nbytes)
        if nbytes > len(self._here):
            self._here = self._made(2 * nbytes)
        self._host = self._pinned[slot].numpy().data

    def add(self, values: _Array) -> int:
        """Where the device will find these values."""
        first, self._end = self._end, self._end + _size(values)
        self._host[first : first + len(values) * values.itemsize] = memoryview(values).cast("B")
        return self._here.data_ptr() + first

    def send(self) -> None:
        """Enqueue the copy of all of them."""
        if self._end:
            self._here[: self._end].copy_(self._pinned[self._slot][: self._end], non_blocking=True)

    def _made(self, nbytes: int) -> Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8, device=self._device.torch)


def _size(values: _Array) -> int:
    return -(-len(values) * values.itemsize // _ALIGNMENT) * _ALIGNMENT


def _arrays_of(step: SequenceStep) -> list[_Array]:
    """What is done to the logits of a step: penalized, penalties, biased, biases, masked, and, if not all, allowed."""
    changes = step.changes or _NO_CHANGES
    arrays: list[_Array] = [
        changes.penalized,
        changes.penalties,
        changes.biased,
        changes.biases,
        array("i", step.masked_ids),
    ]
    return arrays if changes.allowed is None else [*arrays, changes.allowed or _NO_IDS]
