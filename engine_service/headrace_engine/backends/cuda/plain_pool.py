"""Reads and writes the blocks of csrc's device kernels in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace_engine.backends.torch.kv_pool import SCALE_BYTES, Entries, HadamardEntries, Numbers, to_codes
from headrace_engine.native import Kv
from headrace_engine.native.abi import KvBlocks

_CODE_BITS = {Kv.INT8: 8, Kv.UINT4: 4}
_TOGETHER = 8
"""Number of 4-bit codes in a 32-bit word."""


def plain_entries(layer: Tensor, shape: KvBlocks) -> tuple[Entries, Entries]:
    """Return views of the keys and of the values of a layer, uint8 [blocks, bytes of a block]."""
    bits = _CODE_BITS.get(Kv(shape.kv))
    layout = (2, shape.kv_heads, shape.block_size)
    rows = 2 * shape.kv_heads * shape.block_size
    if bits is None:
        numbers = layer[:, : 2 * rows * shape.head_dim].view(torch.bfloat16).unflatten(1, (*layout, shape.head_dim))
        return BlockNumbers(numbers[:, 0]), BlockNumbers(numbers[:, 1])
    width = shape.head_dim * bits // 8
    codes = layer[:, : rows * width].unflatten(1, (*layout, width))
    scales = layer[:, rows * width : rows * (width + SCALE_BYTES)].view(torch.float32).unflatten(1, (*layout, 2))
    keys, values = (QuantizedBlocks(codes[:, side], scales[:, side], bits) for side in (0, 1))
    return keys, values


class BlockNumbers(Numbers):
    """Entries as numbers, a strided view [blocks, kv_heads, block_size, head_dim]."""

    def gather(self, table: Tensor) -> Tensor:
        """See Entries. Flattening a strided view would copy the whole pool."""
        return _chosen(self.tensors[0], table).float()


class QuantizedBlocks(HadamardEntries):
    """Quantized entries; eight 4-bit codes form a word, in the order in which kernels widen them.

    Args:
        codes: [blocks, kv_heads, block_size, bytes].
        scales: step and minimum, [blocks, kv_heads, block_size, 2].
        bits: 8 or 4.
    """

    def __init__(self, codes: Tensor, scales: Tensor, bits: int) -> None:
        super().__init__(bits)
        self._bits = bits
        self.tensors: tuple[Tensor, ...] = (codes, scales)

    def put(self, blocks: Tensor, offsets: Tensor, heads: Tensor) -> None:
        """See Entries."""
        codes, scales = self.tensors
        found, scales[blocks, :, offsets] = to_codes(heads, self._bits)
        codes[blocks, :, offsets] = found if self._bits == 8 else _packed(found)

    def gather(self, table: Tensor) -> Tensor:
        """See Entries."""
        codes, scales = (_chosen(tensor, table) for tensor in self.tensors)
        if self._bits == 4:
            codes = _unpacked(codes)
        return codes.float().mul_(scales[..., :1]).add_(scales[..., 1:])


def _packed(codes: Tensor) -> Tensor:
    """Pack codes into words: codes 2j and 2j + 1 of eight start at bits 4j and 4j + 16."""
    nibbles = codes.unflatten(-1, (-1, _TOGETHER // 2, 2)).transpose(-1, -2).flatten(-2)
    low, high = nibbles.unflatten(-1, (-1, 2)).unbind(-1)
    packed: Tensor = (low | high << 4).flatten(-2)
    return packed


def _unpacked(packed: Tensor) -> Tensor:
    nibbles = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    codes: Tensor = nibbles.unflatten(-1, (-1, 2, _TOGETHER // 2)).transpose(-1, -2).flatten(-3)
    return codes


def _chosen(entries: Tensor, table: Tensor) -> Tensor:
    """Return the blocks of each row of a table, concatenated: [rows, kv_heads, tokens, …]."""
    blocks: Tensor = entries[table.flatten()].unflatten(0, table.shape)
    return blocks.transpose(1, 2).flatten(2, 3)
