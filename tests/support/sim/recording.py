"""CUDA graphs for tensors on the CPU: the operations of a step, and the memory that they work on.

A recording has the restrictions of a graph. Replays compute on the same memory; operations that need the host (reading
a number from a tensor, making a tensor from Python numbers) are errors during recording, as during stream capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NEEDS_HOST = frozenset(
    ("item", "is_nonzero", "_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "_unique2", "equal")
)
"""Operators that wait for the device, or copy from memory that is not pinned."""


class CaptureError(RuntimeError):
    """An operation cannot be part of a graph."""


class Recording:
    """Operations in the order of recording. Owns references to all their tensors, which so live as long as it does."""

    def __init__(self) -> None:
        self._operations: list[Callable[[], object]] = []
        self._kept: list[object] = []

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: Callable[[], object]) -> None:
        """Add a function to run at each replay. It works on fixed memory, such as the launch of a kernel."""
        self._operations.append(operation)

    def replay(self) -> None:
        """Compute everything again, on the memory's current contents."""
        with torch.inference_mode():
            for operation in self._operations:
                operation()

    @contextmanager
    def torch_operators(self) -> Iterator[None]:
        """Record torch's operators until the end of the block; they also compute as usual.

        Raises:
            CaptureError: an operator cannot be part of a graph.
        """
        with _Recorder(self):
            yield


class _Recorder(TorchDispatchMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _NEEDS_HOST or (name == "index" and _by_mask(args[1])):
            raise CaptureError(f"{name} cannot be part of a graph: it needs the host")
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            self._recording.add(lambda: func(*args, **kwargs))
        elif not _is_view(result, (args, kwargs)):
            self._recording.add(lambda: _again(result, func(*args, **kwargs)))
        return result


def _by_mask(indices: Any) -> bool:
    """True if the number of entries chosen, and so the result's shape, is known only to the device."""
    return any(index is not None and index.dtype == torch.bool for index in indices)


def _again(earlier: Any, now: Any) -> None:
    """Copy new results to the memory of the earlier ones."""
    for place, value in zip(tree_leaves(earlier), tree_leaves(now), strict=True):
        if isinstance(place, Tensor):
            place.copy_(value)


def _is_view(result: Any, arguments: Any) -> bool:
    """True if the results are views of the arguments' memory, with nothing to compute again."""
    return _storages(result) <= _storages(arguments)


def _storages(tree: Any) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}
