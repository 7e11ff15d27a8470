"""The decoder's ops in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace_engine.backends.torch import batch as batches
from headrace_engine.backends.torch.attention import blocks_per_tile, paged_attention
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.backends.torch.kv_pool import KvPool
from headrace_engine.backends.torch.linear import linear
from headrace_engine.backends.torch.rope import RotaryTable
from headrace_engine.models.decoder import Batch
from headrace_engine.models.spec import DecoderSpec


class TorchOps:
    """Implements models.decoder.Ops over torch tensors.

    Args:
        spec: the decoder.
        rotary: tables of all positions.
        pool: keys and values.
        device: the device that holds the tensors.
    """

    def __init__(self, spec: DecoderSpec, rotary: RotaryTable, pool: KvPool, device: torch.device) -> None:
        self._head_dim = spec.head_dim
        self._rotary = rotary
        self._pool = pool
        self._device = device

    def prepare(self, batch: Batch) -> TorchBatch:
        """See Ops."""
        block_size = self._pool.block_size
        return batches.prepare(batch, block_size, blocks_per_tile(block_size), self._device)

    def embedding(self, table: Tensor, batch: TorchBatch) -> Tensor:
        """See Ops."""
        return table[batch.token_ids]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return normed(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See Ops."""
        return linear(x, weight, bias)

    def linears(self, x: Tensor, projections: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """See Ops. One after the other."""
        return [linear(x, weight, bias) for weight, bias in projections]

    def rotate(self, q: Tensor, k: Tensor, batch: TorchBatch) -> tuple[Tensor, Tensor]:
        """See Ops."""
        q, k = (self._rotary.rotate(self._heads(x), batch.positions).flatten(1) for x in (q, k))
        return q, k

    def append_kv(self, layer: int, k: Tensor, v: Tensor, batch: TorchBatch) -> None:
        """See Ops."""
        self._pool.keys[layer].put(batch.blocks, batch.offsets, self._heads(k))
        self._pool.values[layer].put(batch.blocks, batch.offsets, self._heads(v))

    def paged_attention(self, layer: int, q: Tensor, batch: TorchBatch, window: int | None) -> Tensor:
        """See Ops."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        return paged_attention(self._heads(q), keys, values, batch, self._pool.block_size, window).flatten(1)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Ops."""
        return torch.nn.functional.silu(gate) * up

    def select_rows(self, x: Tensor, batch: TorchBatch) -> Tensor:
        """See Ops."""
        return x[batch.logits_rows]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self._head_dim)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMSNorm of each row; the mean is computed in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)
