"""The host tier on a CPU: a second piece of memory, and copies between it and the KV pool."""

from __future__ import annotations

from headrace_engine.core.runner import BlockCopies
from headrace_engine.native import Memory, Program


class HostBlocks:
    """Blocks beside a program's pool, each in one piece, while the pool has them layer by layer.

    Args:
        program: whose blocks they are.
        pool, num_blocks: its pool.
        memory: for host blocks, as many as fit.

    Raises:
        ValueError: the pool is smaller than it says.
    """

    def __init__(self, program: Program, pool: Memory, num_blocks: int, memory: Memory) -> None:
        layers, size = program.shape.layers, program.block_bytes
        self._pool = pool.view(0, num_blocks * size).reshape(layers, num_blocks, -1)
        self._blocks = memory.view(0, memory.nbytes // size * size).reshape(-1, layers, size // layers)

    def copy(self, copies: BlockCopies) -> None:
        """See Runner.copy_blocks; done when it returns."""
        for block, host_block in copies.to_host:
            self._blocks[host_block] = self._pool[:, block]
        for host_block, block in copies.to_pool:
            self._pool[:, block] = self._blocks[host_block]
