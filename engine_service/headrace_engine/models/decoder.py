"""One decoder for all families: the order of the operations, which the backend implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

from headrace_engine.models.adapters.adapter import may_change
from headrace_engine.models.experts import Shared, experts_by_layer
from headrace_engine.models.ops import Batch, Ops, Prepared, Tensor
from headrace_engine.models.spec import DecoderSpec, LatentSpec, NormKind, QkNorm


class Interrupted(Exception):
    """The forward pass was interrupted: its result is no longer needed."""


class Decoder(Generic[Tensor, Prepared]):
    """A decoder-only transformer that follows a DecoderSpec.

    Args:
        spec: shape and variant.
        ops: the backend.
        weights: tensors by canonical name, as models/tensor_shapes.py lists them.
        adapts: rows may have adapters.

    Attributes:
        done: number of matrix products and attentions so far. Other threads may read it.
    """

    def __init__(
        self, spec: DecoderSpec, ops: Ops[Tensor, Prepared], weights: Mapping[str, Tensor], *, adapts: bool = False
    ) -> None:
        self._spec = spec
        self._ops = ops
        self._weights = weights
        self._experts_of = experts_by_layer(spec, weights)
        self._adapts = adapts
        self._interrupted = False
        self.done = 0

    @property
    def vocab_size(self) -> int:
        """Number of ids that have logits."""
        return self._spec.vocab_size

    @property
    def embedding(self) -> Tensor:
        """The embedding table, [vocab, hidden]."""
        return self._weights["embed"]

    def forward(self, batch: Batch) -> Tensor:
        """Compute all rows, append their keys and values, and return the logits [len(logits_rows), vocab]."""
        return self.logits(self.last_states(batch))

    def last_states(self, batch: Batch) -> Tensor:
        """Like `states`, but return only those of rows that need logits: [len(logits_rows), hidden]."""
        rows = self._ops.prepare(batch)
        return self._ops.select_rows(self._states(rows), rows)

    def states(self, batch: Batch) -> Tensor:
        """Like `forward`, but return the last hidden states of all rows, after the final norm: [rows, hidden]."""
        return self._states(self._ops.prepare(batch))

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [rows, vocab] of last hidden states."""
        self._go_on()
        head = self._weights["embed" if self._spec.tied_head else "head"]
        logits = self._ops.linear(states, head, self._weights.get("head_bias"))
        return self._scaled(logits, self._spec.logit_scale, self._spec.logit_soft_cap)

    def interrupt(self) -> None:
        """Have `forward` raise `Interrupted` before its next product or attention. Safe from any thread."""
        self._interrupted = True

    def _go_on(self) -> None:
        self.done += 1
        if self._interrupted:
            raise Interrupted

    def _states(self, rows: Prepared) -> Tensor:
        embedded = self._ops.embedding(self._weights["embed"], rows)
        residual = self._scaled(embedded, self._spec.embedding_scale)
        branch: Tensor | None = None
        for layer in range(self._spec.num_layers):
            x, residual = self._joined(branch, residual, f"layers.{layer}.input_norm")
            attended = self._branch(self._attention(layer, x, rows), f"layers.{layer}.attention_out_norm")
            if not self._spec.parallel:
                x, residual = self._joined(attended, residual, f"layers.{layer}.post_norm")
            elif self._spec.parallel_norms:
                x, _ = self._joined(None, residual, f"layers.{layer}.post_norm")
            out = self._experts(layer, x, rows) if layer in self._experts_of else self._mlp(layer, x, rows)
            branch = self._branch(out, f"layers.{layer}.mlp_out_norm")
            if self._spec.parallel:
                branch = self._ops.add(attended, branch)
        x, _ = self._joined(branch, residual, "final_norm")
        return x

    def _attention(self, layer: int, x: Tensor, rows: Prepared) -> Tensor:
        if self._spec.latent is None:
            q, k, v = self._linears(layer, ("q", "k", "v"), x, self._spec.qkv_bias, rows)
        else:
            q, k, v = self._of_latents(layer, self._spec.latent, x, rows)
        norms = None
        if self._spec.qk_norm is not QkNorm.NONE:
            norms = (self._weights[f"layers.{layer}.q_norm"], self._weights[f"layers.{layer}.k_norm"])
        q = self._ops.append_kv(layer, q, k, v, rows, norms)
        self._go_on()
        out = self._ops.paged_attention(layer, q, rows, self._weights.get(f"layers.{layer}.sinks"))
        return self._linear(layer, "o", out, self._spec.output_bias, rows)

    def _of_latents(self, layer: int, latent: LatentSpec, x: Tensor, rows: Prepared) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of latent attention, of heads whose first entries rotate."""
        bias = self._spec.qkv_bias
        of_queries = x
        if latent.query_rank:
            of_queries = self._linear(layer, "q_latent", x, bias, rows)
            of_queries = self._ops.rms_norm(of_queries, self._weights[f"layers.{layer}.q_latent_norm"], latent.eps)
        q = self._linear(layer, "q", of_queries, False, rows)
        narrow, shared = (self._linear(layer, name, x, bias, rows) for name in ("latent", "k_shared"))
        narrow = self._ops.rms_norm(narrow, self._weights[f"layers.{layer}.latent_norm"], latent.eps)
        k, v = self._linears(layer, ("k", "v"), narrow, False, rows)
        return q, self._ops.add(k, self._linear(layer, "k_spread", shared, False, rows)), v

    def _mlp(self, layer: int, x: Tensor, rows: Prepared, prefix: str = "") -> Tensor:
        bias = self._spec.mlp_bias
        if not self._spec.mlp_gate:
            up = self._linear(layer, f"{prefix}up", x, bias, rows)
            return self._linear(layer, f"{prefix}down", self._ops.activated(up), bias, rows)
        gate, up = self._linears(layer, (f"{prefix}gate", f"{prefix}up"), x, bias, rows)
        return self._linear(layer, f"{prefix}down", self._ops.gated(gate, up), bias, rows)

    def _experts(self, layer: int, x: Tensor, rows: Prepared) -> Tensor:
        spec, shared = self._spec.experts, None
        assert spec is not None
        scores = self._linear(layer, "router", x, spec.bias, rows)
        if spec.shared_width:
            score = self._linear(layer, "shared_score", x, False, rows) if spec.shared_gate else None
            shared = Shared(self._mlp(layer, x, rows, "shared_"), score)
        self._go_on()
        correction = self._weights.get(f"layers.{layer}.router_correction")
        return self._ops.experts(x, scores, self._experts_of[layer], shared, correction)

    def _joined(self, branch: Tensor | None, residual: Tensor, norm: str) -> tuple[Tensor, Tensor]:
        """Return the norm, if there is one, of the sum of branch and residual, and the sum."""
        weight, eps = self._weights.get(norm), self._spec.norm_eps
        if weight is not None and self._spec.norm is NormKind.LAYER:
            total = residual if branch is None else self._ops.add(branch, residual)
            return self._ops.layer_norm(total, weight, self._weights.get(f"{norm}_bias"), eps), total
        if branch is None:
            return residual if weight is None else self._ops.rms_norm(residual, weight, eps), residual
        if weight is not None:
            return self._ops.add_rms_norm(branch, residual, weight, eps)
        total = self._ops.add(branch, residual)
        return total, total

    def _branch(self, out: Tensor, norm: str) -> Tensor:
        """Return what attention or MLP add to the residual: normalised, if there is a norm, and scaled."""
        weight = self._weights.get(norm)
        if weight is not None:
            out = self._ops.rms_norm(out, weight, self._spec.norm_eps)
        return self._scaled(out, self._spec.branch_scale)

    def _scaled(self, x: Tensor, scale: float, soft_cap: float = 0.0) -> Tensor:
        return x if scale == 1 and not soft_cap else self._ops.scaled(x, scale, soft_cap)

    def _linear(self, layer: int, name: str, x: Tensor, bias: bool, rows: Prepared) -> Tensor:
        self._go_on()
        name = f"layers.{layer}.{name}"
        out = self._ops.linear(x, *self._projection(name, bias))
        return self._ops.adapted(x, [out], [name], rows)[0] if self._may_adapt(name) else out

    def _linears(self, layer: int, names: Sequence[str], x: Tensor, bias: bool, rows: Prepared) -> Sequence[Tensor]:
        self._go_on()
        names = [f"layers.{layer}.{name}" for name in names]
        outs = self._ops.linears(x, [self._projection(name, bias) for name in names])
        return self._ops.adapted(x, outs, names, rows) if self._may_adapt(names[0]) else outs

    def _may_adapt(self, name: str) -> bool:
        return self._adapts and may_change(name, self._spec)

    def _projection(self, name: str, bias: bool) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of one linear layer."""
        return self._weights[name], self._weights[f"{name}_bias"] if bias else None
