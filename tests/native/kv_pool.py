"""Blocks of keys and values as `csrc/core_device_kv.h` lays them out, read and written here by other means."""

from __future__ import annotations

import numpy as np
import torch
from headrace_engine.native import Kv
from headrace_engine.native.abi import KvBlocks
from torch import Tensor

BITS = {Kv.BFLOAT16: 16, Kv.INT8: 8, Kv.UINT4: 4}
MOST = {Kv.INT8: 255, Kv.UINT4: 15}
"""The largest code."""

FAR = 3 << 29
"""A gap that takes the block after next beyond 2^31 bytes. What nobody touches takes no memory."""

_GUARD = 64
GAP = 48
"""Bytes between blocks that belong to nobody."""

kv_formats = tuple(BITS)


def hadamard_matrix(dim: int) -> np.ndarray:
    """What a head is multiplied by to be spread, [dim, dim]: Hadamard matrices along the diagonal."""
    block = next(power for power in (256, 128, 64, 32, 16) if dim % power == 0)
    signs = [[(-1.0) ** (row & column).bit_count() for column in range(block)] for row in range(block)]
    return np.kron(np.eye(dim // block), np.array(signs))


class HadamardRotation:
    """Heads of one format, which are spread where its codes are of four bits."""

    def __init__(self, kv: Kv, dim: int) -> None:
        spreads = kv is Kv.UINT4
        self._matrix = torch.from_numpy(hadamard_matrix(dim) if spreads else np.eye(dim))
        self._times = float((self._matrix[0] != 0).sum())

    def rotate(self, heads: Tensor) -> Tensor:
        """As they are stored, float64."""
        return heads.double() @ self._matrix

    def gathered(self, heads: Tensor) -> Tensor:
        """As they were before, or queries as attention takes them, float64."""
        return heads.double() @ self._matrix / self._times


class KvPool:
    """Blocks of one layer, full of NaN and of the largest code at first.

    Args:
        gap: bytes between blocks that belong to nobody.

    Attributes:
        step, low: scales, float32 views [count, 2, kv_heads, block_size]; of bfloat16 None.
    """

    def __init__(
        self, device: str, kv: Kv, kv_heads: int, dim: int, block_size: int, count: int, gap: int = GAP
    ) -> None:
        self.kv, self.dim, self.block_size, self.count = kv, dim, block_size, count
        self.rotation = HadamardRotation(kv, dim)
        self._shape = (count, 2, kv_heads, block_size)
        self._row_bytes = dim * BITS[kv] // 8
        self._rows = 2 * kv_heads * block_size
        self.block_bytes = self._rows * (self._row_bytes + (0 if kv is Kv.BFLOAT16 else 8))
        self._stride = self.block_bytes + gap
        self._all = torch.empty(2 * _GUARD + count * self._stride, dtype=torch.uint8, device=device)
        for part in (self._all[:_GUARD], self._all[-_GUARD:], self._blocks()[:, : self.block_bytes + GAP]):
            part.fill_(0xFF)

    @property
    def struct(self) -> KvBlocks:
        """As the ops take it."""
        _, _, kv_heads, _ = self._shape
        data = self._all.data_ptr() + _GUARD
        return KvBlocks(data, self._stride, self.count, kv_heads, self.dim, self.block_size, self.kv)

    def _blocks(self) -> Tensor:
        return self._all[_GUARD : _GUARD + self.count * self._stride].view(self.count, self._stride)

    @property
    def rows(self) -> Tensor:
        """The bytes of all rows: [count, 2, kv_heads, block_size, bytes of a row], a view."""
        flat = self._blocks()[:, : self._rows * self._row_bytes]
        return flat.view(*self._shape, self._row_bytes)

    @property
    def scales(self) -> Tensor:
        """Step and low of all rows, float32 [count, 2, kv_heads, block_size, 2], a view."""
        first = self._rows * self._row_bytes
        flat = self._blocks()[:, first : first + self._rows * 8]
        return flat.view(torch.float32).view(*self._shape, 2)

    def fill(self) -> None:
        """Random entries everywhere."""
        if self.kv is Kv.BFLOAT16:
            numbers = torch.randn(*self._shape, self.dim) + torch.randn(*self._shape[:3], 1, 1)
            self.rows.copy_(numbers.bfloat16().view(torch.uint8))
            return
        self.rows.copy_(torch.randint(0, 256, self.rows.shape, dtype=torch.uint8))
        width = torch.rand(*self._shape) * 3 + 1
        middle = torch.randn(*self._shape) * 0.5
        self.scales.copy_(torch.stack([width / MOST[self.kv], middle - width / 2], dim=-1))

    def codes(self) -> Tensor:
        """Codes of all rows, int64 [count, 2, kv_heads, block_size, dim] on the CPU."""
        stored = self.rows.cpu().long()
        if self.kv is Kv.INT8:
            return stored
        words = stored.unflatten(-1, (-1, 4)) @ (256 ** torch.arange(4))
        j, h = torch.arange(8) // 2, torch.arange(8) % 2
        return (words.unsqueeze(-1) >> (4 * j + 16 * h) & 15).flatten(-2)

    def entries(self) -> Tensor:
        """What all rows stand for, float64 [count, 2, kv_heads, block_size, dim] on the CPU."""
        if self.kv is Kv.BFLOAT16:
            return self.rows.contiguous().view(torch.bfloat16).cpu().double()
        scales = self.scales.cpu().double()
        return self.rotation.gathered(scales[..., 1:] + scales[..., :1] * self.codes())

    def forget(self, block: int, slot: int) -> None:
        """Make a token's rows what may be in memory that was never written: NaN."""
        self.rows[block, :, :, slot] = 0xFF
        if self.kv is not Kv.BFLOAT16:
            self.scales[block, :, :, slot] = torch.nan

    def untouched(self) -> bool:
        """Nobody wrote outside of the blocks."""
        whole = self._all.cpu()
        blocks = whole[_GUARD : _GUARD + self.count * self._stride].view(self.count, self._stride)
        gaps = blocks[:, self.block_bytes : self.block_bytes + GAP]
        return bool((whole[:_GUARD] == 0xFF).all() and (whole[-_GUARD:] == 0xFF).all() and (gaps == 0xFF).all())
