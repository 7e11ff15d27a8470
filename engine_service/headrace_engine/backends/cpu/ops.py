"""The decoder's ops, recorded: every call appends an op to a step that is replayed as one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace_engine.backends.cpu.adapters import CpuAdapters
from headrace_engine.backends.cpu.offsets import Activation, Offsets, RecordedOp
from headrace_engine.backends.cpu.products import Projection, RecordedProducts, Vector
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.ops import Batch
from headrace_engine.models.rope.tables import PositionTables
from headrace_engine.models.spec import DecoderSpec, QkNorm
from headrace_engine.native import NO_VALUE, Activations, Gate, PackedMatrix, Program, Rows


class RecordingOps:
    """Implements models.ops.Ops over activations that have no offset yet; `prepare` returns None.

    Args:
        spec: the decoder, with the size of padded heads.
        filled: share of the entries of a padded head that are no padding.
        positions: tables of all positions.
        activations: their format in products with quantized weights.
        adapters: their factors; None: rows have none.

    Attributes:
        recorded: the ops recorded so far.
        states: last hidden states of all rows.
        selected: hidden states of the rows that need logits.
    """

    states: Activation
    selected: Activation

    def __init__(
        self,
        spec: DecoderSpec,
        filled: float,
        positions: PositionTables,
        activations: Activations,
        adapters: CpuAdapters | None = None,
    ) -> None:
        self.recorded: list[RecordedOp] = []
        self._spec = spec
        self._filled = filled
        self._positions = positions
        self._products = RecordedProducts(self.recorded, spec, activations, adapters)

    def prepare(self, batch: Batch) -> None:
        """See Ops. The batch comes with each run."""

    def whole(self, x: Activation, width: int) -> Activation:
        """Return rows of this width, of which x may be the rank's part; here there is one."""
        return x

    def embedding(self, table: PackedMatrix, batch: None) -> Activation:
        """See Ops."""
        out = Activation(table.matrix.inputs)

        def record(program: Program, offsets: Offsets) -> None:
            program.embed(table, offsets[out])

        self.recorded.append(RecordedOp((), (out,), record))
        return out

    def rms_norm(self, x: Activation, weight: Vector, eps: float) -> Activation:
        """See Ops."""
        out = Activation(x.width, x.rows)

        def record(program: Program, offsets: Offsets) -> None:
            program.norm(weight, offsets[x], offsets[out], eps, residual=NO_VALUE, residual_out=NO_VALUE)

        self.recorded.append(RecordedOp((x,), (out,), record))
        return out

    def add_rms_norm(
        self, x: Activation, residual: Activation, weight: Vector, eps: float
    ) -> tuple[Activation, Activation]:
        """See Ops."""
        out, total = Activation(x.width, x.rows), Activation(x.width, x.rows)

        def record(program: Program, offsets: Offsets) -> None:
            added = {"residual": offsets[residual], "residual_out": offsets[total]}
            program.norm(weight, offsets[x], offsets[out], eps, **added)

        self.recorded.append(RecordedOp((x, residual), (total, out), record, ((total, residual),)))
        return out, total

    def layer_norm(self, x: Activation, weight: Vector, bias: Vector | None, eps: float) -> Activation:
        """See Ops."""
        out = Activation(x.width, x.rows)

        def record(program: Program, offsets: Offsets) -> None:
            program.layer_norm(weight, bias, offsets[x], offsets[out], eps)

        self.recorded.append(RecordedOp((x,), (out,), record))
        return out

    def linear(self, x: Activation, weight: PackedMatrix, bias: Vector | None = None) -> Activation:
        """See Ops."""
        (out,) = self.linears(x, [(weight, bias)])
        return out

    def linears(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        """See Ops."""
        return self._products.linears(x, projections)

    def adapted(
        self, x: Activation, outs: Sequence[Activation], names: Sequence[str], batch: None
    ) -> Sequence[Activation]:
        """See Ops."""
        return self._products.adapted(x, outs, names)

    def append_kv(
        self, layer: int, q: Activation, k: Activation, v: Activation, batch: None, norms: tuple[Vector, Vector] | None
    ) -> Activation:
        """See Ops."""
        # A norm divides by the root of a mean, to which padding adds zeros: weights and eps make up for them.
        eps = self._spec.norm_eps * self._filled
        if norms is not None:
            norms = (norms[0] * np.float32(self._filled**0.5), norms[1] * np.float32(self._filled**0.5))
        if norms is not None and self._spec.qk_norm is QkNorm.WHOLE:
            q, k = self._heads_normed(q, norms[0], eps), self._heads_normed(k, norms[1], eps)
            norms = None
        out = Activation(q.width)
        rope, scales = self._spec.layers[layer].rope, self._positions.query_scales
        rotary = None if rope is None else self._positions.rotary[rope]
        tables = None if rotary is None else (rotary.cos, rotary.sin)

        def record(program: Program, offsets: Offsets) -> None:
            program.rope_append(
                layer, offsets[q], offsets[k], offsets[v], offsets[out], tables, norms, eps if norms else 0.0, scales
            )

        self.recorded.append(RecordedOp((q, k, v), (out,), record, ((out, q),)))
        return out

    def paged_attention(self, layer: int, q: Activation, batch: None, sinks: Vector | None = None) -> Activation:
        """See Ops."""
        out = Activation(q.width)
        spec, window = self._spec, self._spec.layers[layer].window or 0

        def record(program: Program, offsets: Offsets) -> None:
            scale, soft_cap = spec.score_scale, spec.attention_soft_cap
            program.attention(layer, offsets[q], offsets[out], scale, window=window, soft_cap=soft_cap, sinks=sinks)

        self.recorded.append(RecordedOp((q,), (out,), record))
        return out

    def gated(self, gate: Activation, up: Activation) -> Activation:
        """See Ops."""
        out = Activation(gate.width, gate.rows)

        def record(program: Program, offsets: Offsets) -> None:
            program.gated(offsets[gate], offsets[up], offsets[out], Gate[self._spec.gate])

        self.recorded.append(RecordedOp((gate, up), (out,), record, ((out, gate),)))
        return out

    def activated(self, x: Activation) -> Activation:
        """See Ops."""
        out = Activation(x.width, x.rows)

        def record(program: Program, offsets: Offsets) -> None:
            program.gated(offsets[x], NO_VALUE, offsets[out], Gate[self._spec.gate])

        self.recorded.append(RecordedOp((x,), (out,), record, ((out, x),)))
        return out

    def experts(
        self,
        x: Activation,
        scores: Activation,
        experts: Sequence[Expert[Any]],
        shared: Shared[Activation] | None,
        correction: Vector | None = None,
    ) -> Activation:
        """See Ops."""
        return self._products.experts(x, scores, experts, shared, correction)

    def scaled(self, x: Activation, scale: float, soft_cap: float) -> Activation:
        """See Ops."""
        out = Activation(x.width, x.rows)

        def record(program: Program, offsets: Offsets) -> None:
            program.scaled(offsets[x], offsets[out], scale, soft_cap=soft_cap)

        self.recorded.append(RecordedOp((x,), (out,), record, ((out, x),)))
        return out

    def add(self, x: Activation, y: Activation) -> Activation:
        """See Ops."""
        out = Activation(x.width, x.rows)

        def record(program: Program, offsets: Offsets) -> None:
            program.scaled(offsets[x], offsets[out], added=offsets[y])

        self.recorded.append(RecordedOp((x, y), (out,), record, ((out, x),)))
        return out

    def select_rows(self, x: Activation, batch: None) -> Activation:
        """See Ops."""
        out = Activation(x.width, Rows.LOGITS)
        self.states, self.selected = x, out

        def record(program: Program, offsets: Offsets) -> None:
            program.select(offsets[x], offsets[out])

        self.recorded.append(RecordedOp((x,), (out,), record))
        return out

    def sample(self, logits: Activation) -> None:
        """Sample a token for each row of logits. Hidden states stay live to the end of the step, for extra outputs."""

        def record(program: Program, offsets: Offsets) -> None:
            program.sample(offsets[logits])

        self.recorded.append(RecordedOp((logits, self.states, self.selected), (), record))

    def _heads_normed(self, x: Activation, weight: Vector, eps: float) -> Activation:
        """Normalise all heads together."""
        return self.rms_norm(x, weight, eps)
