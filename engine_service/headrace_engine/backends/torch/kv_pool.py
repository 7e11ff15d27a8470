"""Keys and values in blocks: as numbers, or quantized with a step and a minimum per token and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from headrace_engine.backends.torch.hadamard import hadamard, hadamard_block
from headrace_engine.config import KvCacheMode
from headrace_engine.models.spec import DecoderSpec

CODE_BITS = {KvCacheMode.INT8: 8, KvCacheMode.UINT4: 4}
"""Bits of an entry, in quantized modes."""

SCALE_BYTES = 8
"""Bytes of step and minimum per token and head, in quantized modes."""

_FILLED_UP = 16
"""Multiple to which the native library pads heads with zeros, as this pool does for Hadamard rotated heads. The zeros
are entries of the head."""


class Entries(Protocol):
    """The keys, or the values, of one layer.

    Attributes:
        tensors: their storage, each [num_blocks, kv_heads, block_size, …].
    """

    tensors: tuple[Tensor, ...]

    def put(self, blocks: Tensor, offsets: Tensor, heads: Tensor) -> None:
        """Store heads [rows, kv_heads, head_dim] at offsets [rows] of blocks [rows]."""

    def gather(self, table: Tensor) -> Tensor:
        """Return the blocks of each row of a table [rows, blocks], in float32: [rows, kv_heads, tokens, head_dim].

        They may be padded and Hadamard rotated: `queries` and `outputs` account for that.
        """

    def queries(self, heads: Tensor) -> Tensor:
        """Transform float32 queries, [.., head_dim], for products with gathered entries."""

    def outputs(self, sums: Tensor) -> Tensor:
        """Transform weighted sums of gathered entries into those of plain ones; padding may remain."""


class Numbers:
    """Entries in a number format: [num_blocks, kv_heads, block_size, head_dim]."""

    def __init__(self, entries: Tensor) -> None:
        self.tensors: tuple[Tensor, ...] = (entries,)

    def put(self, blocks: Tensor, offsets: Tensor, heads: Tensor) -> None:
        """See Entries."""
        self.tensors[0][blocks, :, offsets] = heads

    def gather(self, table: Tensor) -> Tensor:
        """See Entries."""
        return _chosen(self.tensors[0], table).float()

    def queries(self, heads: Tensor) -> Tensor:
        """See Entries."""
        return heads

    def outputs(self, sums: Tensor) -> Tensor:
        """See Entries."""
        return sums


class HadamardEntries:
    """Rotates queries and outputs of attention for 4-bit codes, which are Hadamard rotated."""

    def __init__(self, bits: int) -> None:
        self._rotates = bits == 4

    def queries(self, heads: Tensor) -> Tensor:
        """See Entries."""
        if not self._rotates:
            return heads
        filled = filled_up(heads)
        return hadamard(filled) / hadamard_block(filled.shape[-1])

    def outputs(self, sums: Tensor) -> Tensor:
        """See Entries."""
        return hadamard(sums) / hadamard_block(sums.shape[-1]) if self._rotates else sums


class QuantizedEntries(HadamardEntries):
    """Entries as unsigned codes: entry = low + step · code, with step and low per token and head.

    For the same float32 entries, the codes of a head equal those of csrc's rope_append. With 4 bits, the head is padded
    and Hadamard rotated first, and entries i and i + head_dim / 2 share a byte, the first in its low half.

    Args:
        shape: num_blocks, kv_heads, block_size, head_dim.
        bits: 8 or 4.
    """

    def __init__(self, shape: tuple[int, int, int, int], bits: int, device: torch.device) -> None:
        super().__init__(bits)
        *places, head_dim = shape
        self._bits = bits
        codes = torch.zeros(*places, code_bytes(head_dim, bits), dtype=torch.uint8, device=device)
        scales = torch.zeros(*places, 2, dtype=torch.float32, device=device)
        self.tensors: tuple[Tensor, ...] = (codes, scales)

    def put(self, blocks: Tensor, offsets: Tensor, heads: Tensor) -> None:
        """See Entries."""
        codes, scales = self.tensors
        found, scales[blocks, :, offsets] = to_codes(heads, self._bits)
        codes[blocks, :, offsets] = self._packed(found)

    def gather(self, table: Tensor) -> Tensor:
        """See Entries."""
        codes, scales = (_chosen(tensor, table) for tensor in self.tensors)
        if self._bits == 4:
            codes = torch.cat([codes & 15, codes >> 4], -1)
        return codes.float().mul_(scales[..., :1]).add_(scales[..., 1:])

    def _packed(self, codes: Tensor) -> Tensor:
        if self._bits == 8:
            return codes
        first, second = codes.chunk(2, -1)
        return first | second << 4


def filled_up(heads: Tensor) -> Tensor:
    """Pad heads [.., head_dim] with zeros to a multiple of _FILLED_UP."""
    return torch.nn.functional.pad(heads, (0, -heads.shape[-1] % _FILLED_UP))


def code_bytes(head_dim: int, bits: int) -> int:
    """Return the bytes of a head's codes; with 4 bits, the head is padded."""
    return head_dim if bits == 8 else -(-head_dim // _FILLED_UP) * _FILLED_UP // 2


def to_codes(heads: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantize heads (4 bits: Hadamard rotated); return uint8 codes, and step and minimum, float32 [.., 2]."""
    largest, entries = 2**bits - 1, heads.float()
    if bits == 4:
        entries = hadamard(filled_up(entries))
    low, high = entries.amin(-1, keepdim=True), entries.amax(-1, keepdim=True)
    if entries.shape[-1] % _FILLED_UP:
        low, high = low.clamp(max=0), high.clamp(min=0)
    step = (high - low) / largest
    found = ((entries - low) / step).round().clamp(max=largest)
    return found.where(step > 0, 0).to(torch.uint8), torch.cat([step, low], -1)


class KvPool:
    """Keys and values of all layers, in blocks.

    Args:
        spec: the decoder.
        num_blocks, block_size: number of blocks, and of tokens per block.
        mode: storage of keys and values.
        dtype, device: format if not quantized, and device of the tensors.

    Attributes:
        keys, values: entries by layer.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        num_blocks: int,
        block_size: int,
        mode: KvCacheMode,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
        bits = CODE_BITS.get(mode)

        def new() -> Entries:
            return (
                QuantizedEntries(shape, bits, device)
                if bits
                else Numbers(torch.zeros(shape, dtype=dtype, device=device))
            )

        self.block_size = block_size
        self.keys = _each_layer(spec, new)
        self.values = _each_layer(spec, new)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the pool; the first dimension is the block."""
        return [tensor for entries in (*self.keys, *self.values) for tensor in entries.tensors]


def token_bytes(spec: DecoderSpec, mode: KvCacheMode, itemsize: int) -> int:
    """Return the bytes of the keys and values of one token in all layers.

    Args:
        itemsize: bytes of an entry that is not quantized.
    """
    bits = CODE_BITS.get(mode)
    head = code_bytes(spec.head_dim, bits) + SCALE_BYTES if bits else spec.head_dim * itemsize
    return 2 * spec.num_layers * spec.num_kv_heads * head


def _each_layer(spec: DecoderSpec, new: Callable[[], Entries]) -> list[Entries]:
    return [new() for _ in range(spec.num_layers)]


def _chosen(pool: Tensor, table: Tensor) -> Tensor:
    """Return the blocks of each row of a table, concatenated: [rows, kv_heads, tokens, …]."""
    rows, kv_heads = len(table), pool.shape[1]
    heads = torch.arange(kv_heads, device=pool.device).unsqueeze(1)
    places = (table.unsqueeze(1) * kv_heads + heads).flatten()
    return pool.flatten(0, 1).index_select(0, places).view(rows, kv_heads, -1, pool.shape[-1])
