"""Drawing on the device: one kernel draws a token for each row of logits, and one copy brings back what was drawn."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.device import Device
from headrace_engine.backends.cuda.staging import Staging
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
from headrace_engine.config import SamplingParams
from headrace_engine.core.runner import LogitChanges, Sampled, SequenceStep
from headrace_engine.native import Dtype
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
    """Draws for one step at a time.

    Args:
        device: where the logits are.
        rows: of logits in the largest step.
        vocab: ids of a row.
    """

    def __init__(self, device: Device, rows: int, vocab: int) -> None:
        self._device = device
        self._vocab = vocab
        shapes = {"changes": ((rows, CHANGES.size), np.uint8), "sampling": ((rows, SAMPLING.size), np.uint8)}
        self._staging = Staging(device, shapes)
        self._changes = self._staging.host["changes"].reshape(-1).data
        self._sampling = self._staging.host["sampling"].reshape(-1).data
        self._arrays = _Arrays(device, rows * (vocab // 8 + 1024))
        self._room = torch.empty(rows, vocab, dtype=torch.float32, device=device.torch)
        results = {"sampled": SAMPLED.size, "ids": 4 * TOP, "logprobs": 8 * TOP}
        self._results = Staging(device, {name: ((rows, size), np.uint8) for name, size in results.items()})
        host = {name: self._results.host[name].reshape(-1).data for name in results}
        self._sampled, self._tops = host["sampled"], (host["ids"].cast("i"), host["logprobs"].cast("d"))

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._staging.nbytes + self._results.nbytes + self._room.nbytes + self._arrays.nbytes

    def fill(self, draws: Sequence[Draw], rows: int) -> None:
        """Write how rows are drawn where the device copies from; rows that nobody draws from give any token.

        What is done to logits is sent at once, since how much it is changes from step to step.
        """
        for row in set(range(rows)).difference(row for row, _ in draws):
            pack_sampling(self._sampling, row, _NOTHING, _GREEDY, 0, self._vocab)
        changing = {row: _arrays_of(step) for row, step in draws if step.masked_ids or step.changes is not None}
        self._arrays.reserve(sum(_size(each) for arrays in changing.values() for each in arrays))
        for row, step in draws:
            changes = self._change(row, step, changing[row]) if row in changing else 0
            pack_sampling(self._sampling, row, step, step.sampling or _GREEDY, changes, self._vocab)
        self._arrays.send()

    def draw(self, logits: Tensor) -> None:
        """Enqueue the copy of what was filled in, the drawing, and the copy of what was drawn."""
        rows = len(logits)
        self._staging.send("sampling", rows)
        here = self._results.here
        args = SampleRows(
            logits=logits.data_ptr(),
            sampling=self._staging.here["sampling"].data_ptr(),
            sampled=here["sampled"].data_ptr(),
            top_ids=here["ids"].data_ptr(),
            top_logprobs=here["logprobs"].data_ptr(),
            room=self._room.data_ptr(),
            rows=rows,
            vocab=self._vocab,
            dtype=Dtype.BFLOAT16,
        )
        self._device.launch("sample_rows", args)
        self._results.fetch()

    def drawn(self, draws: Sequence[Draw]) -> Iterator[Sampled]:
        """What was drawn, once the device has come so far."""
        rows = ((row, step.sampling or _GREEDY) for row, step in draws)
        return unpack_drawn(self._sampled, self._tops, rows, self._vocab)

    def _change(self, row: int, step: SequenceStep, arrays: Sequence[_Array]) -> int:
        """Where the device finds what is done to a row of logits."""
        places = [self._arrays.add(each) for each in arrays]
        words = 0 if len(places) < _PLACES else len(arrays[-1])
        places += [0] * (_PLACES - len(places))
        pack_changes(self._changes, row, step.changes or _NO_CHANGES, len(step.masked_ids), places, words)
        return self._staging.here["changes"][row].data_ptr()


class PlainDrawing:
    """Draws by torch's operators, in place of Drawing. It waits for the device, so that no step can be captured."""

    nbytes = 0

    def __init__(self) -> None:
        self._logits: Tensor | None = None

    def fill(self, draws: Sequence[Draw], rows: int) -> None:
        """See Drawing. Nothing is sent beforehand."""

    def draw(self, logits: Tensor) -> None:
        """See Drawing. Kept until `drawn`."""
        self._logits = logits

    def drawn(self, draws: Sequence[Draw]) -> Iterator[Sampled]:
        """See Drawing."""
        if draws:
            assert self._logits is not None, "drawn() before draw()"
            yield from sample(self._logits, [step for _, step in draws])


class _Arrays:
    """Arrays of one step, one behind the other, in memory that grows where a step needs more."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self._end = 0
        self._make(nbytes)

    @property
    def nbytes(self) -> int:
        return self._here.nbytes

    def reserve(self, nbytes: int) -> None:
        """Begin anew, with room for so much."""
        self._end = 0
        if nbytes > len(self._host):
            self._make(2 * nbytes)

    def add(self, values: _Array) -> int:
        """Where the device will find these values."""
        first, self._end = self._end, self._end + _size(values)
        self._host[first : first + len(values) * values.itemsize] = memoryview(values).cast("B")
        return self._here.data_ptr() + first

    def send(self) -> None:
        """Enqueue the copy of all of them."""
        if self._end:
            self._here[: self._end].copy_(self._pinned[: self._end], non_blocking=True)

    def _make(self, nbytes: int) -> None:
        self._pinned = self._device.pinned(nbytes)
        self._here = torch.zeros(nbytes, dtype=torch.uint8, device=self._device.torch)
        self._host = self._pinned.numpy().data


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
