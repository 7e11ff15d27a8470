"""The decoder's ops in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from headrace_engine.backends.torch import batch as batches
from headrace_engine.backends.torch import experts as mixture
from headrace_engine.backends.torch.adapters import TorchAdapters
from headrace_engine.backends.torch.attention import Scores, blocks_per_tile, paged_attention
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.backends.torch.kv_pool import KvPool
from headrace_engine.backends.torch.linear import linear
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.ops import Batch
from headrace_engine.models.spec import DecoderSpec, GateKind, QkNorm

_GATES: Mapping[GateKind, Callable[[Tensor], Tensor]] = {
    GateKind.SILU: torch.nn.functional.silu,
    GateKind.GELU: torch.nn.functional.gelu,
    GateKind.GELU_TANH: partial(torch.nn.functional.gelu, approximate="tanh"),
}


class TorchOps:
    """Implements models.ops.Ops over torch tensors.

    Args:
        spec: the decoder.
        positions: tables of all positions.
        pool: keys and values.
        device: the device that holds the tensors.
        adapters: their factors; None: rows have none.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        positions: Positions,
        pool: KvPool,
        device: torch.device,
        adapters: TorchAdapters | None = None,
    ) -> None:
        self._spec = spec
        self._positions = positions
        self._pool = pool
        self._device = device
        self._adapters = adapters

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

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """See Ops."""
        return layer_normed(x, weight, bias, eps)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See Ops."""
        return linear(x, weight, bias)

    def linears(self, x: Tensor, projections: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """See Ops. One after the other."""
        return [linear(x, weight, bias) for weight, bias in projections]

    def adapted(self, x: Tensor, outs: Sequence[Tensor], names: Sequence[str], batch: TorchBatch) -> Sequence[Tensor]:
        """See Ops."""
        return outs if self._adapters is None else self._adapters.add(x, outs, names, batch.adapters)

    def append_kv(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: TorchBatch, norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """See Ops."""
        if norms is not None:
            q, k = (head_normed(x, weight, self._spec) for x, weight in zip((q, k), norms, strict=True))
        q, k = (self._positions.rotate(layer, self._heads(x), batch.positions) for x in (q, k))
        self._pool.keys[layer].put(batch.blocks, batch.offsets, k)
        self._pool.values[layer].put(batch.blocks, batch.offsets, self._heads(v))
        return self._positions.scale(q, batch.positions).flatten(1)

    def paged_attention(self, layer: int, q: Tensor, batch: TorchBatch, sinks: Tensor | None = None) -> Tensor:
        """See Ops."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        window = self._spec.layers[layer].window
        scores = Scores(self._spec.score_scale, self._spec.attention_soft_cap, window, sinks)
        return paged_attention(self._heads(q), keys, values, batch, self._pool.block_size, scores).flatten(1)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Ops."""
        return gated(self._spec.gate, gate, up)

    def activated(self, x: Tensor) -> Tensor:
        """See Ops."""
        return activated(self._spec.gate, x)

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        experts: Sequence[Expert[Tensor]],
        shared: Shared[Tensor] | None,
        correction: Tensor | None = None,
    ) -> Tensor:
        """See Ops."""
        assert self._spec.experts is not None
        out = mixture.routed(x, scores, experts, self._spec.experts, self.gated, correction=correction)
        return out if shared is None else out + mixture.shared_part(shared)

    def scaled(self, x: Tensor, scale: float, soft_cap: float) -> Tensor:
        """See Ops."""
        return scaled(x, scale, soft_cap)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """See Ops."""
        return x + y

    def select_rows(self, x: Tensor, batch: TorchBatch) -> Tensor:
        """See Ops."""
        return x[batch.logits_rows]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self._spec.head_dim)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMSNorm of each row; the mean is computed in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def layer_normed(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return the LayerNorm of each row, computed in float32."""
    wide = None if bias is None else bias.float()
    return torch.nn.functional.layer_norm(x.float(), weight.shape, weight.float(), wide, eps).to(x.dtype)


def activated(kind: GateKind, x: Tensor) -> Tensor:
    """Return the activation of x, which is not CLAMPED."""
    return _GATES[kind](x)


def gated(kind: GateKind, gate: Tensor, up: Tensor) -> Tensor:
    """See GateKind."""
    if kind is not GateKind.CLAMPED:
        return _GATES[kind](gate) * up
    low = gate.clamp(max=7)
    return low * torch.sigmoid(low * 1.702) * (up.clamp(-7, 7) + 1)


def head_normed(x: Tensor, weight: Tensor, spec: DecoderSpec) -> Tensor:
    """Return the RMSNorm of each head of queries or keys [rows, width], or of all together, as the spec says."""
    if spec.qk_norm is QkNorm.WHOLE:
        return normed(x, weight, spec.norm_eps)
    return normed(x.unflatten(1, (-1, spec.head_dim)), weight, spec.norm_eps).flatten(1)


def scaled(x: Tensor, scale: float, soft_cap: float) -> Tensor:
    """See Ops.scaled."""
    return soft_cap * torch.tanh(x * (scale / soft_cap)) if soft_cap else x * scale
