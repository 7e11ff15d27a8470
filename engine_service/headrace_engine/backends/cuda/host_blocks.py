"""The host tier of the cuda backend: pinned memory, which a kernel of the device reads and writes over the bus."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device import Device
from headrace_engine.backends.cuda.pool import KvPool
from headrace_engine.core.runner import BlockCopies
from headrace_engine.native.device_kv import CopyBlocks


class HostBlocks:
    """Blocks in pinned memory, each in one piece.

    Any number of blocks moves with one launch, and takes no memory of the device but that of their numbers. It is done
    in the order of the device's work, so that nothing waits for a copy but what is computed after it.

    Args:
        device: where the pool lies.
        pool: keys and values.
        num_host_blocks: at least 1.
    """

    def __init__(self, device: Device, pool: KvPool, num_host_blocks: int) -> None:
        self._device = device
        self._in_pool = pool.blocks
        _, layers, size = pool.blocks.shape
        self._in_host = device.pinned(num_host_blocks * layers * size).view(num_host_blocks, layers, size)

    def copy(self, copies: BlockCopies) -> None:
        """See Runner.copy_blocks."""
        self._launch(copies.to_host, self._in_pool, self._in_host)
        self._launch(copies.to_pool, self._in_host, self._in_pool)

    def _launch(self, pairs: Sequence[tuple[int, int]], source: Tensor, target: Tensor) -> None:
        """Copy between tensors [blocks, layers, bytes]."""
        if not pairs:
            return
        numbers = torch.tensor(pairs, dtype=torch.int32, device=self._device.torch)
        args = CopyBlocks(
            source=source.data_ptr(),
            target=target.data_ptr(),
            pairs=numbers.data_ptr(),
            bytes=source.shape[2],
            source_stride=source.stride(0),
            target_stride=target.stride(0),
            source_piece_stride=source.stride(1),
            target_piece_stride=target.stride(1),
            count=len(pairs),
            pieces=source.shape[1],
        )
        self._device.launch("copy_blocks", args)
