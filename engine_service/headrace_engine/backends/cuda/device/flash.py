"""Flash attention of torch instead of the kernel, for prompts whose whole context is in the step.

Torch's paged kernels need pages of at least 256 tokens, larger than blocks, so keys and values are gathered from the
blocks into rows. For a later chunk of a prompt, that would copy the whole context again.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.pool import KvPool, entries_of
from headrace_engine.environment import PLAIN_VARIABLE
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.ops import Extent
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Kv

FLASH = "flash_attention"
"""Name of this op among the plain ones."""


class PromptBatch(Protocol):
    """A step, as far as attention of its prompts reads it; see CudaBatch."""

    single: int
    slots: Tensor
    longest: int
    prompts: Sequence[Extent]

    @property
    def prompts_begin(self) -> bool:
        """True if no prompt has tokens in the pool before the step."""

    @property
    def prompt_firsts(self) -> Tensor:
        """First row of each prompt among theirs, then the number of rows."""


class PromptAttention(Protocol):
    """Attention that takes the place of the kernel for the prompts of a step: sequences with several rows."""

    def takes(self, batch: PromptBatch, sinks: Tensor | None) -> bool:
        """True if it computes the prompts of a step; else the kernel does."""

    def attend(self, layer: int, q: Tensor, out: Tensor, batch: PromptBatch) -> None:
        """Compute the outputs for the queries of the prompts' rows, both bfloat16 [rows, heads · head_dim]."""


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
        spec: the decoder.

    Raises:
        InvalidArgument: keys and values are quantized.
    """

    def __init__(self, attention: VaryingAttention, pool: KvPool, spec: DecoderSpec) -> None:
        shape = pool.shape
        if shape.kv != Kv.BFLOAT16:
            text = f'= "{FLASH}" in the environment takes no codes of keys and values: leave it out, or kv_cache_mode'
            raise InvalidArgument.field(PLAIN_VARIABLE, text)
        self._attention = attention
        self._block_size = shape.block_size
        self._layers = entries_of(pool)
        self._spec = spec

    def takes(self, batch: PromptBatch, sinks: Tensor | None) -> bool:
        """See PromptAttention."""
        return batch.prompts_begin and sinks is None and not self._spec.attention_soft_cap

    def attend(self, layer: int, q: Tensor, out: Tensor, batch: PromptBatch) -> None:
        """See PromptAttention."""
        slots, stored = batch.slots[batch.single :], self._layers[layer]
        blocks, offsets = slots // self._block_size, slots % self._block_size
        k, v = (stored[:, side][blocks, :, offsets] for side in (0, 1))
        heads, window = q.unflatten(1, (-1, k.shape[-1])), self._spec.layers[layer].window or 0
        lengths = {"longest": batch.longest, "window": window}
        attended = self._attention(heads, k, v, batch.prompt_firsts, **lengths, scale=self._spec.score_scale)
        out.copy_(attended.flatten(1))
