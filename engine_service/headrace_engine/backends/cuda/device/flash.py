"""Flash attention of torch instead of the kernel, for prompts whose whole context is in the step.

Torch's paged kernels need pages of at least 256 tokens, larger than blocks, so keys and values are gathered from the
blocks into rows. For a later chunk of a prompt, that would copy the whole context again.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.environment import PLAIN_VARIABLE
from headrace_engine.errors import InvalidArgument
from headrace_engine.native import Kv

FLASH = "flash_attention"
"""Name of this op among the plain ones."""


class VaryingAttention(Protocol):
    """Causal attention within each of several concatenated sequences."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, firsts: Tensor, *, longest: int, window: int, scale: float
    ) -> Tensor:
        """Return the outputs, in the shape and type of q.

        Args:
            q: bfloat16 [rows, heads, head_dim].
            k, v: bfloat16 [rows, kv_heads, head_dim].
            firsts: int32 [sequences + 1], from 0 to the number of rows.
            longest: maximum rows of a sequence.
            window: positions that a row attends to, its own included; 0: all.
            scale: factor for products of queries and keys.
        """
        ...


def torch_attention() -> VaryingAttention:
    """Return the attention of the installed torch.

    Raises:
        InvalidArgument: it has none, or one without the needed parameters.
    """
    function, taken = _varying_attention()
    if not {"scale", "window_size"} <= taken:
        text = f'= "{FLASH}" in the environment, but torch {torch.__version__} has no such attention: leave it out'
        raise InvalidArgument.field(PLAIN_VARIABLE, text)
    shared_heads = {"enable_gqa": True} if "enable_gqa" in taken else {}

    def attention(
        q: Tensor, k: Tensor, v: Tensor, firsts: Tensor, *, longest: int, window: int, scale: float
    ) -> Tensor:
        seen = (window - 1 if window else -1, 0)
        lengths = (firsts, firsts, longest, longest)
        result: Tensor = function(q, k, v, *lengths, scale=scale, window_size=seen, **shared_heads)
        return result

    return attention


def _varying_attention() -> tuple[Any, frozenset[str]]:
    """Return the function, and the names of its parameters."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None, frozenset()
    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)


def attention_by_sequence(
    q: Tensor, k: Tensor, v: Tensor, firsts: Tensor, *, longest: int, window: int, scale: float
) -> Tensor:
    """Implement VaryingAttention on a CPU."""
    out = torch.empty_like(q)
    for begin, end in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        rows = torch.arange(end - begin)
        behind = rows.unsqueeze(1) - rows
        seen = (behind >= 0) & (behind < window) if window else behind >= 0
        queries, keys, values = (part[begin:end].transpose(0, 1).unsqueeze(0) for part in (q, k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, scale=scale, enable_gqa=True
        )
        out[begin:end] = attended[0].transpose(0, 1)
    return out


class FlashPrefill:
    """Attention of prompts that begin in the step.

    Args:
        attention: the implementation.
        pool: keys and values as bfloat16.

    Raises:
        InvalidArgument: keys and values are quantized.
    """

    def __init__(self, attention: VaryingAttention, pool: KvPool) -> None:
        shape = pool.shape
        if shape.kv != Kv.BFLOAT16:
            text = f'= "{FLASH}" in the environment takes no codes of keys and values: leave it out, or kv_cache_mode'
            raise InvalidArgument.field(PLAIN_VARIABLE, text)
        self._attention = attention
        self._block_size = shape.block_size
        rows = (2, shape.kv_heads, shape.block_size, shape.head_dim)
        entries = 2 * shape.kv_heads * shape.block_size * shape.head_dim
        self._layers = [layer[:, : 2 * entries].view(torch.bfloat16).unflatten(1, rows) for layer in pool.tensors]

    def attend(
        self, layer: int, q: Tensor, slots: Tensor, firsts: Tensor, longest: int, window: int, scale: float
    ) -> Tensor:
        """Return the outputs for queries [rows, heads · head_dim], whose keys and values are in slots, int32 [rows]."""
        blocks, offsets = slots // self._block_size, slots % self._block_size
        stored = self._layers[layer]
        k, v = (stored[:, side][blocks, :, offsets] for side in (0, 1))
        heads = q.unflatten(1, (-1, k.shape[-1]))
        return self._attention(heads, k, v, firsts, longest=longest, window=window, scale=scale).flatten(1)
