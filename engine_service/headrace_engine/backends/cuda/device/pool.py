"""Keys and values of all layers in the layout of csrc's device kernels."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from headrace_engine.config import KvCacheMode
from headrace_engine.errors import Internal
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Kv, Native
from headrace_engine.native.abi import KvBlocks

KV_MODES = {KvCacheMode.DEFAULT: Kv.BFLOAT16, KvCacheMode.INT8: Kv.INT8, KvCacheMode.UINT4: Kv.UINT4}
"""Storage of keys and values, by the requested mode."""


def kv_blocks(spec: DecoderSpec, block_size: int, kv: Kv) -> KvBlocks:
    """Return the shape of a pool, without memory."""
    return KvBlocks(kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, block_size=block_size, kv=kv)


def bytes_a_block(native: Native, shape: KvBlocks) -> int:
    """Return the bytes of a block of one layer.

    Raises:
        Internal: the shape is not supported.
    """
    function = native.handle.core_kv_block_bytes
    function.argtypes, function.restype = (ctypes.POINTER(KvBlocks),), ctypes.c_int64
    size = int(function(ctypes.byref(shape)))
    if not size:
        raise Internal("keys and values of this shape cannot be stored")
    return size


class KvPool:
    """Blocks of all layers. A spare block follows the last: padding rows of a batch write there.

    Args:
        shape: from `kv_blocks`.
        bytes_a_block: bytes of a block of one layer, a multiple of 16.
        layers: number of layers of the decoder.
        num_blocks: blocks that sequences may use.
        device: the device that holds the blocks.

    Attributes:
        shape: the given shape.
        blocks: uint8 [num_blocks + 1, layers, bytes_a_block], stored layer by layer.
        tensors: by layer, uint8 [num_blocks + 1, bytes_a_block].
        spare_block: index of the block that no sequence owns.
    """

    def __init__(self, shape: KvBlocks, bytes_a_block: int, layers: int, num_blocks: int, device: torch.device) -> None:
        memory = torch.zeros(layers, num_blocks + 1, bytes_a_block, dtype=torch.uint8, device=device)
        self.blocks = memory.transpose(0, 1)
        self.tensors = list(memory.unbind())
        self.shape = shape
        self.spare_block = num_blocks
        self._layers = [_placed(shape, layer) for layer in self.tensors]

    def layer(self, number: int) -> KvBlocks:
        """Return the blocks of one layer, for kernels."""
        return self._layers[number]


def entries_of(pool: KvPool) -> list[Tensor]:
    """Return keys and values of each layer of a pool of numbers: [blocks, 2, kv_heads, block_size, head_dim]."""
    shape = pool.shape
    rows = (2, shape.kv_heads, shape.block_size, shape.head_dim)
    nbytes = torch.bfloat16.itemsize * math.prod(rows)
    return [layer[:, :nbytes].view(torch.bfloat16).unflatten(1, rows) for layer in pool.tensors]


def _placed(shape: KvBlocks, layer: Tensor) -> KvBlocks:
    blocks = KvBlocks.from_buffer_copy(shape)
    # A bare address, valid as long as the pool, whose `tensors` hold the memory.
    blocks.data, blocks.stride, blocks.count = layer.data_ptr(), layer.stride(0), len(layer)
    return blocks
