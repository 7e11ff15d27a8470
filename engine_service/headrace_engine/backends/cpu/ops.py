"""The decoder's ops, recorded: every call appends an op to a step that is replayed as one native call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.offsets import Activation, Offsets, RecordedOp
from headrace_engine.backends.cpu.rope import RotaryTables
from headrace_engine.models.decoder import Batch
from headrace_engine.native import NO_VALUE, Activations, PackedMatrix, Product, Program, Rows

Vector = NDArray[np.float32]
Projection = tuple[PackedMatrix, Vector | None]

_MAX_PRODUCTS = 3
"""Maximum number of products of one x in an op."""


class RecordingOps:
    """Implements models.decoder.Ops over activations that have no offset yet; `prepare` returns None.

    Args:
        scale: factor for products of queries and keys.
        rotary: tables of all positions.
        activations: their format in products with quantized weights.

    Attributes:
        recorded: the ops recorded so far.
        states: last hidden states of all rows.
        selected: hidden states of the rows that need logits.
    """

    states: Activation
    selected: Activation

    def __init__(self, scale: float, rotary: RotaryTables, activations: Activations) -> None:
        self.recorded: list[RecordedOp] = []
        self._scale = scale
        self._rotary = rotary
        self._activations = activations
        self._rotation: dict[Activation, tuple[Activation, Activation, Activation]] = {}

    def prepare(self, batch: Batch) -> None:
        """See Ops. The batch comes with each run."""

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

    def linear(self, x: Activation, weight: PackedMatrix, bias: Vector | None = None) -> Activation:
        """See Ops."""
        (out,) = self.linears(x, [(weight, bias)])
        return out

    def linears(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        """See Ops. Records ops of up to _MAX_PRODUCTS products."""
        outs: list[Activation] = []
        for first in range(0, len(projections), _MAX_PRODUCTS):
            outs += self._multiply(x, projections[first : first + _MAX_PRODUCTS])
        return outs

    def rotate(self, q: Activation, k: Activation, batch: None) -> tuple[Activation, Activation]:
        """See Ops. Recorded by append_kv: one op does both."""
        rotated_q, rotated_k = Activation(q.width), Activation(k.width)
        self._rotation[rotated_k] = (q, k, rotated_q)
        return rotated_q, rotated_k

    def append_kv(self, layer: int, k: Activation, v: Activation, batch: None) -> None:
        """See Ops. The keys are those that `rotate` returned last."""
        q, plain_k, rotated_q = self._rotation.pop(k)
        cos, sin = self._rotary.cos, self._rotary.sin

        def record(program: Program, offsets: Offsets) -> None:
            program.rope_append(layer, offsets[q], offsets[plain_k], offsets[v], offsets[rotated_q], cos, sin)

        self.recorded.append(RecordedOp((q, plain_k, v), (rotated_q,), record, ((rotated_q, q),)))

    def paged_attention(self, layer: int, q: Activation, batch: None, window: int | None) -> Activation:
        """See Ops."""
        out = Activation(q.width)

        def record(program: Program, offsets: Offsets) -> None:
            program.attention(layer, offsets[q], offsets[out], self._scale, window=window or 0)

        self.recorded.append(RecordedOp((q,), (out,), record))
        return out

    def silu_mul(self, gate: Activation, up: Activation) -> Activation:
        """See Ops."""
        out = Activation(gate.width, gate.rows)

        def record(program: Program, offsets: Offsets) -> None:
            program.gated(offsets[gate], offsets[up], offsets[out])

        self.recorded.append(RecordedOp((gate, up), (out,), record, ((out, gate),)))
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

    def _multiply(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        outs = [Activation(weight.matrix.outputs, x.rows) for weight, _ in projections]

        def record(program: Program, offsets: Offsets) -> None:
            pairs = zip(projections, outs, strict=True)
            products = [Product(weight, offsets[out], bias) for (weight, bias), out in pairs]
            program.linear(offsets[x], products, self._activations)

        self.recorded.append(RecordedOp((x,), tuple(outs), record))
        return outs
