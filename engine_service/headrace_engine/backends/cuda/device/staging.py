"""Arrays of a step, in one buffer on the host and one on the device, so that one copy moves all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.in_flight import DEPTH

_ALIGNMENT = 16
"""Alignment of each array, in bytes."""

_TORCH = {
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}

Array = NDArray[Any]


class Staging:
    """Arrays on the device, and in pinned memory of the host.

    The host has DEPTH copies, its *slots*. The host owns a slot until `send`, and again once its step was waited
    for; between them the device reads and writes it. The device has one copy, since it works in order.

    Args:
        device: the device.
        shapes: shape and dtype (uint8, int32, int64, float32) of each array by name, in memory order.

    Attributes:
        host: by slot, the arrays on the host.
        here: the same arrays on the device.
    """

    def __init__(self, device: Device, shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> None:
        self._ends: dict[str, int] = {}
        spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name, (shape, dtype) in shapes.items():
            first = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = first + int(np.prod(shape)) * np.dtype(dtype).itemsize
            spans[name] = first, end
        self._sources = [device.pinned(end) for _ in range(DEPTH)]
        self._target = torch.zeros(end, dtype=torch.uint8, device=device.torch)
        self._spans = spans
        self.host: list[dict[str, Array]] = [{} for _ in self._sources]
        self.here: dict[str, Tensor] = {}
        for name, (shape, dtype) in shapes.items():
            first, last = spans[name]
            for arrays, source in zip(self.host, self._sources, strict=True):
                arrays[name] = source.numpy()[first:last].view(dtype).reshape(shape)
            self.here[name] = self._target[first:last].view(_TORCH[np.dtype(dtype)]).view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._target.nbytes

    def words(self) -> Tensor:
        """The device's buffer as int32 [words], if all arrays are of that type."""
        return self._target.view(torch.int32)

    def first_word(self, name: str) -> int:
        """Return the index of an array's first word in `words`."""
        return self._spans[name][0] // torch.int32.itemsize

    def send(self, last: str, rows: int, slot: int) -> None:
        """Enqueue the copy of all arrays before `last`, and of the first rows of `last`, from a slot to the device."""
        # The slot is the device's from here until its step was waited for: the next step takes the other one.
        array = self.host[slot][last]
        end = self._spans[last][0] + rows * array.nbytes // max(1, len(array))
        self._target[:end].copy_(self._sources[slot][:end], non_blocking=True)

    def fetch(self, name: str, rows: int, slot: int) -> None:
        """Enqueue the copy of the first rows of an array from the device to a slot."""
        first, last = self._spans[name]
        end = first + rows * (last - first) // max(1, len(self.here[name]))
        # Behind the kernels of the step, so the slot has its results once the device has reached the step's mark.
        self._sources[slot][first:end].copy_(self._target[first:end], non_blocking=True)


class Words:
    """32-bit numbers of steps, in one buffer as Staging's, but laid out anew by each step: only what it uses is sent.

    Args:
        device: the device.
        kept: numbers in front, which are the device's own.
        count: maximum numbers of a step.

    Attributes:
        host: by slot, int32 [count].
        here: on the device, int32 [kept + count].
    """

    def __init__(self, device: Device, kept: int, count: int) -> None:
        self._kept = kept
        self._sources = [device.pinned(count * torch.int32.itemsize).view(torch.int32) for _ in range(DEPTH)]
        self.host: list[Array] = [source.numpy() for source in self._sources]
        self.here = torch.zeros(kept + count, dtype=torch.int32, device=device.torch)

    def send(self, count: int, slot: int) -> Tensor:
        """Enqueue the copy of a slot's first numbers to the device; return them there."""
        target = self.here[self._kept : self._kept + count]
        # As in Staging: the slot is the device's from here until its step was waited for.
        return target.copy_(self._sources[slot][:count], non_blocking=True)
