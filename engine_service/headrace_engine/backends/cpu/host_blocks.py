"""Host tier on a CPU: memory besides the KV pool, and copies between them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from headrace_engine.core.runner import BlockCopies
from headrace_engine.native import Memory, Program

Blocks = NDArray[Any]
"""Blocks of a pool, layer by layer."""


def blocks_of(program: Program, pool: Memory, num_blocks: int) -> Blocks:
    """Return the blocks of a program's pool, [layers, num_blocks, bytes].

    Raises:
        ValueError: the pool is smaller than num_blocks.
    """
    return pool.view(0, num_blocks * program.block_bytes).reshape(program.shape.layers, num_blocks, -1)


class HostBlocks:
    """Host blocks, each contiguous, unlike in the pool, which is stored layer by layer.

    Args:
        program: defines the blocks.
        pool, num_blocks: the program's pool.
        memory: holds as many host blocks as fit.

    Raises:
        ValueError: the pool is smaller than num_blocks.
    """

    def __init__(self, program: Program, pool: Memory, num_blocks: int, memory: Memory) -> None:
        layers, size = program.shape.layers, program.block_bytes
        # Both are views: the runner owns the memory, and drops this object before it frees it.
        self._pool = blocks_of(program, pool, num_blocks)
        self._blocks = memory.view(0, memory.nbytes // size * size).reshape(-1, layers, size // layers)

    def copy(self, copies: BlockCopies) -> None:
        """See Runner.copy_blocks. Synchronous."""
        for block, host_block in copies.to_host:
            self._blocks[host_block] = self._pool[:, block]
        for host_block, block in copies.to_pool:
            self._pool[:, block] = self._blocks[host_block]
