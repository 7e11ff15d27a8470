"""The decoder's ops on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headrace_engine.backends.torch import experts as mixture
from headrace_engine.backends.torch.adapters import TorchAdapters
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.backends.torch.kv_pool import KvPool
from headrace_engine.backends.torch.linear import linear
from headrace_engine.backends.torch.ops import TorchOps, head_normed
from headrace_engine.backends.torch.parallel.group import Group
from headrace_engine.backends.torch.parallel.share import InputPart, OutputPart, Share, Weight
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.ops import Batch
from headrace_engine.models.spec import DecoderSpec, QkNorm


class RankOps(TorchOps):
    """Implements Ops for a rank's share of the weights.

    Products with cut matrices give this rank's part of the columns, which is narrower than the whole. An op that needs
    whole rows gathers them first; what works on columns or heads one by one takes the parts.

    Args:
        spec: the whole decoder.
        pool: keys and values of the rank's heads.
        group: all ranks.
        share: what this one holds.
        adapters: its share of their factors; None: rows have none.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        positions: Positions,
        pool: KvPool,
        device: torch.device,
        group: Group,
        share: Share,
        adapters: TorchAdapters | None,
    ) -> None:
        super().__init__(spec, positions, pool, device, adapters)
        self._group = group
        self._share = share
        # What the last product gathered, for the adapters that change it: the part, and whole rows.
        self._gathered: tuple[Tensor, Tensor] | None = None

    def whole(self, x: Tensor, width: int) -> Tensor:
        """Return rows of this width, of which x may be the rank's part."""
        return x if x.shape[1] == width else self._group.gather(x, width)

    def embedding(self, table: OutputPart, batch: TorchBatch) -> Tensor:  # type: ignore[override]
        """See Ops. Every rank looks up the ids that it has; of its other rows, those of other ranks count."""
        ids, width = batch.token_ids, table.width
        found = table.weight[(ids - self._group.rank * width).clamp(0, width - 1)]
        return self._group.stack(found)[ids // width, torch.arange(len(ids), device=ids.device)]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return super().rms_norm(self.whole(x, len(weight)), weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See Ops."""
        return super().add_rms_norm(self.whole(x, len(weight)), residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """See Ops."""
        return super().layer_norm(self.whole(x, len(weight)), weight, bias, eps)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """See Ops."""
        if isinstance(weight, InputPart):
            total = self._group.add(linear(x, weight.weight))
            return total if bias is None else total + bias
        if isinstance(weight, OutputPart):
            whole = self.whole(x, weight.weight.shape[1])
            self._gathered = None if whole is x or self._adapters is None else (x, whole)
            return _part(whole, weight, bias)
        return linear(self.whole(x, weight.shape[1]), weight, bias)

    def linears(self, x: Tensor, projections: Sequence[tuple[Weight, Tensor | None]]) -> list[Tensor]:
        """See Ops. One after the other."""
        return [self.linear(x, weight, bias) for weight, bias in projections]

    def adapted(self, x: Tensor, outs: Sequence[Tensor], names: Sequence[str], batch: TorchBatch) -> Sequence[Tensor]:
        """See Ops."""
        gathered, self._gathered = self._gathered, None
        if self._adapters is None or not batch.adapters:
            return outs
        if self._share.is_added(names[0]):
            return self._adapters.add(x, outs, names, batch.adapters, self._group.add)
        rows = x if gathered is None else gathered[1]
        return self._adapters.add(rows, outs, names, batch.adapters)

    def append_kv(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: TorchBatch, norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """See Ops. A norm of all heads together needs those of all ranks."""
        if norms is not None and self._spec.qk_norm is QkNorm.WHOLE:
            q, k = (self._normed_part(x, weight) for x, weight in zip((q, k), norms, strict=True))
            norms = None
        return super().append_kv(layer, q, k, v, batch, norms)

    def experts(
        self, x: Tensor, scores: Tensor, experts: Sequence[Expert[Tensor]], shared: Shared[Tensor] | None
    ) -> Tensor:
        """See Ops. The router is not cut, so that all ranks choose alike."""
        assert self._spec.experts is not None
        out = mixture.routed(x, scores, experts, self._spec.experts, self.gated, self.linear)
        return out if shared is None else out + mixture.shared_part(shared)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """See Ops."""
        width = max(x.shape[1], y.shape[1])
        return super().add(self.whole(x, width), self.whole(y, width))

    def _normed_part(self, x: Tensor, weight: Tensor) -> Tensor:
        width = x.shape[1]
        first = self._group.rank * width
        return head_normed(self.whole(x, len(weight)), weight, self._spec)[:, first : first + width].contiguous()


def _part(x: Tensor, weight: OutputPart, bias: Tensor | None) -> Tensor:
    out = linear(x, weight.weight)
    if out.shape[1] > weight.width:
        out = out[:, : weight.width].contiguous()
    return out if bias is None else out + bias


class RankDecoder(Decoder[Tensor, TorchBatch]):
    """A decoder whose weights are a rank's share. Hidden states and logits that it returns are whole."""

    def __init__(self, spec: DecoderSpec, ops: RankOps, weights: Mapping[str, Weight], *, adapts: bool) -> None:
        super().__init__(spec, ops, weights, adapts=adapts)  # type: ignore[arg-type]
        self._whole = ops.whole

    def logits(self, states: Tensor) -> Tensor:
        """See Decoder."""
        return self._whole(super().logits(states), self.vocab_size)


def follow_step(decoder: RankDecoder, batch: Batch, scored: Sequence[Sequence[int]]) -> None:
    """Take part in a step: its states, the logits of its sampled rows, and those of each of the groups of rows."""
    with torch.inference_mode():
        states = decoder.states(batch)
        for rows in (batch.logits_rows, *scored):
            decoder.logits(states[list(rows)])
