"""The decoder's ops, recorded: every call appends an op to a step that is replayed as one native call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.offsets import Activation, Places, RecordedOp
from headrace_engine.backends.cpu.rope import RotaryTables
from headrace_engine.models.decoder import Batch
from headrace_engine.native import NO_VALUE, Activations, PackedMatrix, Product, Program, Rows

Vector = NDArray[np.float32]
Projection = tuple[PackedMatrix, Vector | None]

_MOST_PRODUCTS = 3
"""Of one x in one op."""


class RecordingOps:
    """Implements models.decoder.Ops over activations that have no place yet; what is prepared is None.

    Args:
        scale: of the products of queries and keys.
        rotary: tables for all positions.
        activations: how they enter products with integer weights.

    Attributes:
        recorded: the ops so far.
        states: the last hidden states of all rows.
        selected: those of the wanted rows.
    """

    states: Activation
    selected: Activation

    def __init__(self, scale: float, rotary: RotaryTables, activations: Activations) -> None:
        self.recorded: list[RecordedOp] = []
        self._scale = scale
        self._rotary = rotary
        self._activations = activations
        self._turning: dict[Activation, tuple[Activation, Activation, Activation]] = {}

    def prepare(self, batch: Batch) -> None:
        """See Ops. The batch comes with each run."""

    def embedding(self, table: PackedMatrix, batch: None) -> Activation:
        """See Ops."""
        out = Activation(table.matrix.inputs)

        def record(program: Program, places: Places) -> None:
            program.embed(table, places[out])

        self.recorded.append(RecordedOp((), (out,), record))
        return out

    def rms_norm(self, x: Activation, weight: Vector, eps: float) -> Activation:
        """See Ops."""
        out = Activation(x.width, x.rows)

        def record(program: Program, places: Places) -> None:
            program.norm(weight, places[x], places[out], eps, residual=NO_VALUE, residual_out=NO_VALUE)

        self.recorded.append(RecordedOp((x,), (out,), record))
        return out

    def add_rms_norm(
        self, x: Activation, residual: Activation, weight: Vector, eps: float
    ) -> tuple[Activation, Activation]:
        """See Ops."""
        out, total = Activation(x.width, x.rows), Activation(x.width, x.rows)

        def record(program: Program, places: Places) -> None:
            added = {"residual": places[residual], "residual_out": places[total]}
            program.norm(weight, places[x], places[out], eps, **added)

        self.recorded.append(RecordedOp((x, residual), (total, out), record, ((total, residual),)))
        return out, total

    def linear(self, x: Activation, weight: PackedMatrix, bias: Vector | None = None) -> Activation:
        """See Ops."""
        (out,) = self.linears(x, [(weight, bias)])
        return out

    def linears(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        """See Ops. As many at once as an op takes."""
        outs: list[Activation] = []
        for first in range(0, len(projections), _MOST_PRODUCTS):
            outs += self._multiply(x, projections[first : first + _MOST_PRODUCTS])
        return outs

    def rotate(self, q: Activation, k: Activation, batch: None) -> tuple[Activation, Activation]:
        """See Ops. Recorded with append_kv, which is one op with it."""
        turned_q, turned_k = Activation(q.width), Activation(k.width)
        self._turning[turned_k] = (q, k, turned_q)
        return turned_q, turned_k

    def append_kv(self, layer: int, k: Activation, v: Activation, batch: None) -> None:
        """See Ops. The keys are those that `rotate` returned last."""
        q, plain_k, turned_q = self._turning.pop(k)
        cos, sin = self._rotary.cos, self._rotary.sin

        def record(program: Program, places: Places) -> None:
            program.rope_append(layer, places[q], places[plain_k], places[v], places[turned_q], cos, sin)

        self.recorded.append(RecordedOp((q, plain_k, v), (turned_q,), record, ((turned_q, q),)))

    def paged_attention(self, layer: int, q: Activation, batch: None, window: int | None) -> Activation:
        """See Ops."""
        out = Activation(q.width)

        def record(program: Program, places: Places) -> None:
            program.attention(layer, places[q], places[out], self._scale, window=window or 0)

        self.recorded.append(RecordedOp((q,), (out,), record))
        return out

    def silu_mul(self, gate: Activation, up: Activation) -> Activation:
        """See Ops."""
        out = Activation(gate.width, gate.rows)

        def record(program: Program, places: Places) -> None:
            program.gated(places[gate], places[up], places[out])

        self.recorded.append(RecordedOp((gate, up), (out,), record, ((out, gate),)))
        return out

    def select_rows(self, x: Activation, batch: None) -> Activation:
        """See Ops."""
        out = Activation(x.width, Rows.LOGITS)
        self.states, self.selected = x, out

        def record(program: Program, places: Places) -> None:
            program.select(places[x], places[out])

        self.recorded.append(RecordedOp((x,), (out,), record))
        return out

    def sample(self, logits: Activation) -> None:
        """Draw a token for each row of logits. Hidden states stay to the end of the step, for those that ask."""

        def record(program: Program, places: Places) -> None:
            program.sample(places[logits])

        self.recorded.append(RecordedOp((logits, self.states, self.selected), (), record))

    def _multiply(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        outs = [Activation(weight.matrix.outputs, x.rows) for weight, _ in projections]

        def record(program: Program, places: Places) -> None:
            pairs = zip(projections, outs, strict=True)
            products = [Product(weight, places[out], bias) for (weight, bias), out in pairs]
            program.linear(places[x], products, self._activations)

        self.recorded.append(RecordedOp((x,), tuple(outs), record))
        return outs
