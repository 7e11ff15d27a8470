"""Drawing on the device: one kernel draws a token for each row of logits, and one copy brings back what was drawn."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.device import Device
from headrace_engine.backends.cuda.flights import DEPTH
from headrace_engine.backends.cuda.staging import Array, Staging
from headrace_engine.backends.draw_structs import (
    CHANGES,
    SAMPLED,
    SAMPLING,
    TOP,
    pack_changes,
    pack_sampling,
    unpack_drawn,
)
from headrace_engine.backends.torch.sampler import sample
from headrace_engine.core.runner import LogitChanges, Sampled, SequenceStep
from headrace_engine.generation_config import SamplingParams
from headrace_engine.native import Dtype
from headrace_engine.native import Sampled as SampledStruct
from headrace_engine.native.device_rows import SampleRows

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
        shapes = {"changes": ((rows, CHANGES.size), np.uint8), "sampling": ((rows, SAMPLING.size), np.uint8)}
        self._staging = Staging(device, shapes)
        self._arrays = _Arrays(device, rows * (vocab // 8 + 1024))
        self._room = torch.empty(rows, vocab, dtype=torch.float32, device=device.torch)
        results = {"sampled": SAMPLED.size, "ids": 4 * TOP, "logprobs": 8 * TOP}
        self._results = Staging(device, {name: ((rows, size), np.uint8) for name, size in results.items()})
        self.ids: Tensor | None = self._results.here["sampled"].view(torch.int32)[:, SampledStruct.token.offset // 4]
        self._slots = [_Slot(*both) for both in zip(self._staging.host, self._results.host, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._staging.nbytes + self._results.nbytes + self._room.nbytes + self._arrays.nbytes

    def fill(self, draws: Sequence[Draw], rows: int, slot: int = 0) -> None:
        """Write how rows are drawn to a slot, and enqueue the copy to the device.

        Rows that nobody draws from give any token.
        """
        sampling = self._slots[slot].sampling
        for row in set(range(rows)).difference(row for row, _ in draws):
            pack_sampling(sampling, row, _NOTHING, _GREEDY, 0, self._vocab)
        changing = {row: _arrays_of(step) for row, step in draws if step.masked_ids or step.changes is not None}
        self._arrays.reserve(sum(_size(each) for arrays in changing.values() for each in arrays), slot)
        for row, step in draws:
            changes = self._change(row, step, changing[row], slot) if row in changing else 0
            pack_sampling(sampling, row, step, step.sampling or _GREEDY, changes, self._vocab)
        self._arrays.send()
        self._staging.send("sampling", rows, slot)

    def draw(self, logits: Tensor) -> None:
        """Enqueue the drawing from rows that were filled in."""
        here = self._results.here
        args = SampleRows(
            logits=logits.data_ptr(),
            sampling=self._staging.here["sampling"].data_ptr(),
            sampled=here["sampled"].data_ptr(),
            top_ids=here["ids"].data_ptr(),
            top_logprobs=here["logprobs"].data_ptr(),
            room=self._room.data_ptr(),
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
        return unpack_drawn(self._slots[slot].sampled, self._slots[slot].tops, rows, self._vocab)

    def _change(self, row: int, step: SequenceStep, arrays: Sequence[_Array], slot: int) -> int:
        """Where the device finds what is done to a row of logits."""
        places = [self._arrays.add(each) for each in arrays]
        words = 0 if len(places) < _PLACES else len(arrays[-1])
        places += [0] * (_PLACES - len(places))
        room, changes = self._slots[slot].changes, step.changes or _NO_CHANGES
        pack_changes(room, row, changes, len(step.masked_ids), places, words)
        return self._staging.here["changes"][row].data_ptr()


class _Slot:
    """Memory of the host for one step, as the structs are read and written."""

    def __init__(self, told: dict[str, Array], drawn: dict[str, Array]) -> None:
        self.changes, self.sampling = (told[name].reshape(-1).data for name in ("changes", "sampling"))
        self.sampled = drawn["sampled"].reshape(-1).data
        self.tops = drawn["ids"].reshape(-1).data.cast("i"), drawn["logprobs"].reshape(-1).data.cast("d")


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
