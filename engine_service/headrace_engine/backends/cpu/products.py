"""Products of weights, recorded: linear layers, what adapters add to them, and experts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.adapters import CpuAdapters
from headrace_engine.backends.cpu.offsets import Activation, Offsets, RecordedOp
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import (
    NO_VALUE,
    Activations,
    ExpertWeights,
    Gate,
    LowRank,
    PackedMatrix,
    Product,
    Program,
    Routing,
)

Vector = NDArray[np.float32]
Projection = tuple[PackedMatrix, Vector | None]

_MAX_PRODUCTS = 3
"""Maximum number of products of one x in an op."""


class RecordedProducts:
    """The ops of RecordingOps that multiply by weights.

    Args:
        recorded: the list of ops to append to.
        spec: the decoder.
        activations: their format in products with quantized weights.
        adapters: their factors; None: rows have none.
    """

    def __init__(
        self,
        recorded: list[RecordedOp],
        spec: DecoderSpec,
        activations: Activations,
        adapters: CpuAdapters | None,
    ) -> None:
        self._recorded = recorded
        self._spec = spec
        self._activations = activations
        self._adapters = adapters

    def linears(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        """See Ops. Record ops of up to _MAX_PRODUCTS products."""
        outs: list[Activation] = []
        for first in range(0, len(projections), _MAX_PRODUCTS):
            outs += self._multiply(x, projections[first : first + _MAX_PRODUCTS])
        return outs

    def adapted(self, x: Activation, outs: Sequence[Activation], names: Sequence[str]) -> Sequence[Activation]:
        """See Ops. Record ops of up to _MAX_PRODUCTS products."""
        adapters = self._adapters
        if adapters is None:
            return outs
        changed: list[Activation] = []
        for first in range(0, len(outs), _MAX_PRODUCTS):
            some = slice(first, first + _MAX_PRODUCTS)
            changed += self._adapt(x, outs[some], [adapters.table(name) for name in names[some]], adapters.rank)
        return changed

    def experts(
        self,
        x: Activation,
        scores: Activation,
        experts: Sequence[Expert[Any]],
        shared: Shared[Activation] | None,
        correction: Vector | None = None,
    ) -> Activation:
        """See Ops."""
        out, spec = Activation(experts[0].down.matrix.outputs, x.rows), self._spec.experts
        assert spec is not None
        added, score = (None, None) if shared is None else (shared.out, shared.score)
        read = [each for each in (x, scores, added, score) if each is not None]
        routing = Routing(
            spec.used, spec.normalised, spec.mixer_threshold, spec.sigmoid, spec.scale, correction,
            spec.groups, spec.groups_used,
        )  # fmt: skip
        weights = [
            ExpertWeights(each.gate, each.up, each.down, each.gate_bias, each.up_bias, each.down_bias)
            for each in experts
        ]

        def record(program: Program, offsets: Offsets) -> None:
            program.experts(
                weights,
                offsets[x],
                offsets[scores],
                offsets[out],
                routing,
                activation=Gate[self._spec.gate],
                activations=self._activations,
                shared=NO_VALUE if added is None else offsets[added],
                score=NO_VALUE if score is None else offsets[score],
            )

        self._recorded.append(RecordedOp(tuple(read), (out,), record))
        return out

    def _adapt(
        self, x: Activation, outs: Sequence[Activation], tables: Sequence[ctypes.Array[LowRank]], rank: int
    ) -> list[Activation]:
        hidden = Activation(len(outs) * rank)
        results = [Activation(out.width) for out in outs]

        def record(program: Program, offsets: Offsets) -> None:
            # Rows without an adapter are not written.
            assert all(offsets[out].offset == offsets[each].offset for out, each in zip(outs, results, strict=True))
            program.adapt(
                offsets[x], offsets[hidden], list(zip(tables, (offsets[out] for out in outs), strict=True)), rank
            )

        self._recorded.append(
            RecordedOp((x, *outs), (*results, hidden), record, tuple(zip(results, outs, strict=True)))
        )
        return results

    def _multiply(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        outs = [Activation(weight.matrix.outputs, x.rows) for weight, _ in projections]

        def record(program: Program, offsets: Offsets) -> None:
            pairs = zip(projections, outs, strict=True)
            products = [Product(weight, offsets[out], bias) for (weight, bias), out in pairs]
            program.linear(offsets[x], products, self._activations)

        self._recorded.append(RecordedOp((x,), tuple(outs), record))
        return outs
