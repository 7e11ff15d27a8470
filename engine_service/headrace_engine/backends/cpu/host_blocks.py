"""Host tier on a CPU: memory besides the KV pool, and copies between them."""

from __future__ import annotations

from headrace_engine.core.runner import BlockCopies
from headrace_engine.native import Memory, Program


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
        self._pool = pool.view(0, num_blocks * size).reshape(layers, num_blocks, -1)
        self._blocks = memory.view(0, memory.nbytes // size * size).reshape(-1, layers, size // layers)

    def copy(self, copies: BlockCopies) -> None:
        """See Runner.copy_blocks. Synchronous."""
        for block, host_block in copies.to_host:
            self._blocks[host_block] = self._pool[:, block]
        for host_block, block in copies.to_pool:
            self._pool[:, block] = self._blocks[host_block]
