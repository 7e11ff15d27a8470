"""Host tier of a torch pool: pinned if the pool is on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from headrace_engine.core.runner import BlockCopies

_STAGED = {"cuda": 64 * 2**20, "cpu": 2**22}
"""Maximum bytes staged at a time by kind of device, on the way out of the pool or into it."""

_Pairs = Sequence[tuple[int, int]]


def staged_bytes(device: torch.device, bytes_a_block: int, num_host_blocks: int) -> int:
    """Return the bytes of device memory that copies use, however many blocks are copied."""
    return _staged_blocks(device, bytes_a_block, num_host_blocks) * bytes_a_block


def _staged_blocks(device: torch.device, bytes_a_block: int, num_host_blocks: int) -> int:
    return min(num_host_blocks, max(1, _STAGED[device.type] // bytes_a_block))


class HostBlocks:
    """Blocks in host memory, each contiguous, so that it crosses the bus in one transfer.

    Copies are enqueued on the device's stream, so only later work waits for them.

    Args:
        pool: tensors of a KV pool; the first dimension of each is the block.
        num_host_blocks: at least 1.
    """

    def __init__(self, pool: Sequence[Tensor], num_host_blocks: int) -> None:
        self._pool = [tensor.flatten(1).view(torch.int64) for tensor in pool]
        self._widths = [tensor.shape[1] for tensor in self._pool]
        self._device = self._pool[0].device
        words = sum(self._widths)
        pinned = self._device.type == "cuda"
        self._blocks = torch.zeros(num_host_blocks, words, dtype=torch.int64, pin_memory=pinned)
        staged = _staged_blocks(self._device, 8 * words, num_host_blocks)
        self._staged = torch.zeros(staged, words, dtype=torch.int64, device=self._device)

    def copy(self, copies: BlockCopies) -> None:
        """See Runner.copy_blocks."""
        for pairs in self._parts(copies.to_host):
            self._collect([block for block, _ in pairs])
            for row, (_, host_block) in enumerate(pairs):
                self._blocks[host_block].copy_(self._staged[row], non_blocking=True)
        for pairs in self._parts(copies.to_pool):
            for row, (host_block, _) in enumerate(pairs):
                self._staged[row].copy_(self._blocks[host_block], non_blocking=True)
            self._scatter([block for _, block in pairs])

    def _parts(self, pairs: _Pairs) -> Iterator[_Pairs]:
        """Yield the pairs in parts that fit the staging buffer."""
        rest = iter(pairs)
        while part := list(islice(rest, len(self._staged))):
            yield part

    def _collect(self, blocks: list[int]) -> None:
        numbers = torch.tensor(blocks, device=self._device)
        rows = self._staged[: len(blocks)].split(self._widths, 1)
        for tensor, staged in zip(self._pool, rows, strict=True):
            staged.copy_(tensor.index_select(0, numbers))

    def _scatter(self, blocks: list[int]) -> None:
        numbers = torch.tensor(blocks, device=self._device)
        rows = self._staged[: len(blocks)].split(self._widths, 1)
        for tensor, staged in zip(self._pool, rows, strict=True):
            tensor.index_copy_(0, numbers, staged)
