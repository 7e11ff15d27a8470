"""Host tier of the cuda backend: pinned memory, which a kernel reads and writes over the bus."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device, Mark
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.core.runner import BlockCopies
from headrace_engine.native.abi import CopyBlocks

_DEEP = 2
"""Number of buffers of block numbers, and thus of calls that may be enqueued without waiting for the device."""


class HostBlocks:
    """Blocks in pinned memory, each contiguous.

    One launch moves any number of blocks, and needs device memory for their numbers only. Copies are enqueued in the
    order of the device's work, so only later work waits for them.

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
        self._pairs[:count].copy_(staged, non_blocking=True)
        self._launch(self._pairs[:leaving], self._in_pool, self._in_host)
        self._launch(self._pairs[leaving:count], self._in_host, self._in_pool)
        self._marks[slot] = self._device.mark()

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
        )
        self._device.launch("copy_blocks", args)
