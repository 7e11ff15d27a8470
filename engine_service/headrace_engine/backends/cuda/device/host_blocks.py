"""Host tier of the cuda backend: pinned memory, which a kernel reads and writes over the bus."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device, Mark
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.core.runner import BlockCopies
from headrace_engine.native.abi import CopyBlocks

_SHARE = 64
"""Thread blocks that copy: enough to fill the bus, and few enough that steps are computed beside them."""

_DEEP = 2
"""Number of buffers of block numbers, and thus of calls that may be enqueued without waiting for the device."""


class HostBlocks:
    """Blocks in pinned memory, each contiguous.

    One launch moves any number of blocks, and needs device memory for their numbers only. Copies begin once what was
    enqueued before is done, and of what is enqueued behind them only that waits which needs their blocks: see `settle`.

    Args:
        device: the device that holds the pool.
        pool: keys and values.
        num_host_blocks: at least 1.
    """

    def __init__(self, device: Device, pool: KvPool, num_host_blocks: int) -> None:
        self._device = device
        self._in_pool = pool.blocks
        _, layers, size = pool.blocks.shape
        self._in_host = device.pinned(num_host_blocks * layers * size).view(num_host_blocks, layers, size)
        max_pairs = 2 * num_host_blocks  # Each block may be written and read in one call.
        self._pairs = torch.zeros(max_pairs, 2, dtype=torch.int32, device=device.torch)
        self._staged_pairs = [
            device.pinned(self._pairs.nbytes).view(torch.int32).view(max_pairs, 2) for _ in range(_DEEP)
        ]
        self._marks: list[Mark | None] = [None] * _DEEP
        self._calls = 0
        self._under_way: deque[tuple[frozenset[int], Mark]] = deque()

    def copy(self, copies: BlockCopies) -> None:
        """See Runner.copy_blocks."""
        if not copies:
            return
        slot = self._calls % _DEEP
        self._calls += 1
        # The device owns the buffer from the copy below to the mark: wait for the last call that used it.
        if (mark := self._marks[slot]) is not None:
            mark.wait()
        leaving, count = len(copies.to_host), len(copies.to_host) + len(copies.to_pool)
        staged = self._staged_pairs[slot][:count]
        staged.copy_(torch.tensor([*copies.to_host, *copies.to_pool], dtype=torch.int32))
        in_pool = frozenset((*(block for block, _ in copies.to_host), *(block for _, block in copies.to_pool)))
        try:
            self._device.beside(partial(self._enqueue, staged, leaving))
        finally:  # Some may be under way even where a later one was refused.
            mark = self._marks[slot] = self._device.beside(_nothing)
            self._under_way.append((in_pool, mark))

    def settle(self, blocks: Iterable[int]) -> None:
        """Have what is enqueued from now on wait for the copies from or to any of these blocks of the pool."""
        while self._under_way and self._under_way[0][1].passed:
            self._under_way.popleft()
        if not self._under_way:
            return
        needed = frozenset(blocks)
        for number, (copied, mark) in reversed(list(enumerate(self._under_way))):
            if not copied.isdisjoint(needed):
                mark.follow()
                # Copies are done in their order, so those before it are done too.
                for _ in range(number + 1):
                    self._under_way.popleft()
                return

    def wait(self) -> None:
        """Wait until all copies are done."""
        for mark in self._marks:
            if mark is not None:
                mark.wait()

    def _enqueue(self, staged: Tensor, leaving: int) -> None:
        count = len(staged)
        self._pairs[:count].copy_(staged, non_blocking=True)
        self._launch(self._pairs[:leaving], self._in_pool, self._in_host)
        self._launch(self._pairs[leaving:count], self._in_host, self._in_pool)

    def _launch(self, pairs: Tensor, source: Tensor, target: Tensor) -> None:
        """Copy between tensors [blocks, layers, bytes]; do nothing without pairs."""
        args = CopyBlocks(
            source=source.data_ptr(),
            target=target.data_ptr(),
            pairs=pairs.data_ptr(),
            bytes=source.shape[2],
            source_stride=source.stride(0),
            target_stride=target.stride(0),
            source_piece_stride=source.stride(1),
            target_piece_stride=target.stride(1),
            count=len(pairs),
            pieces=source.shape[1],
            limit=_SHARE,
        )
        self._device.launch("copy_blocks", args)


def _nothing() -> None:
    """Enqueue nothing: the mark behind it is that of what came before."""
