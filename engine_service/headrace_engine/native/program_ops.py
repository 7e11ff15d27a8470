"""The ops of a program of core_cpu, each recorded by a method."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native import abi
from headrace_engine.native.abi import Activations, Gate, LowRank, Shape, Value
from headrace_engine.native.library import Native
from headrace_engine.native.matrix import PackedMatrix
from headrace_engine.native.operands import ExpertWeights, Product, Routing, address_of, expert_struct

NO_VALUE = Value()
"""Marks an absent optional input."""


class ProgramOps:
    """Records ops. Every op is checked when it is recorded; its weights and tables are retained with the program.

    Args:
        native: core_cpu.
        program: the library's program, which whoever created it destroys.
        shape: the largest batch, and the model's numbers.
    """

    def __init__(self, native: Native, program: ctypes.c_void_p, shape: Shape) -> None:
        self.shape = shape
        self._native = native
        self._program: ctypes.c_void_p | None = program
        self._retained: list[Any] = []

    def embed(self, table: PackedMatrix, out: Value) -> None:
        """Record: out is the row of the table for each token."""
        self._record("embed", abi.Embed(ctypes.addressof(table.struct), out), table)

    def norm(
        self,
        weight: NDArray[np.float32],
        x: Value,
        out: Value,
        eps: float,
        *,
        residual: Value = NO_VALUE,
        residual_out: Value = NO_VALUE,
    ) -> None:
        """Record: out is rms_norm(sum) · weight, where sum = x + residual is stored in residual_out, or sum = x."""
        op = abi.Norm(address_of(weight, x.width), x, residual, residual_out, out, eps)
        self._record("norm", op, weight)

    def layer_norm(
        self, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, x: Value, out: Value, eps: float
    ) -> None:
        """Record: out is (x − mean(x)) / √(variance(x) + eps) · weight + bias."""
        added = None if bias is None else address_of(bias, x.width)
        self._record("layer_norm", abi.LayerNorm(address_of(weight, x.width), added, x, out, eps), (weight, bias))

    def linear(self, x: Value, products: Sequence[Product], activations: Activations = Activations.FULL) -> None:
        """Record up to three products of one x."""
        if len(products) > 3:
            raise ValueError(f"{len(products)} products; at most 3")
        op = abi.Linear(x=x, count=len(products), activations=activations)
        for number, product in enumerate(products):
            bias = None if product.bias is None else address_of(product.bias, product.weight.matrix.outputs)
            op.projections[number] = abi.Projection(ctypes.addressof(product.weight.struct), bias, product.out)
        self._record("linear", op, list(products))

    def adapt(
        self, x: Value, hidden: Value, products: Sequence[tuple[ctypes.Array[LowRank], Value]], rank: int
    ) -> None:
        """Record: each out of up to three products of x gets what the adapters of its rows add.

        Args:
            hidden: scratch of len(products) · rank floats a row.
            products: for each, what every adapter adds, which a run reads, and the out that `linear` wrote.
            rank: at least that of each adapter.
        """
        if len(products) > 3:
            raise ValueError(f"{len(products)} products; at most 3")
        op = abi.Adapt(x=x, hidden=hidden, count=len(products), rank=rank)
        for number, (adapters, out) in enumerate(products):
            if len(adapters) != self.shape.adapters:
                raise ValueError(f"{len(adapters)} adapters where {self.shape.adapters} are expected")
            op.products[number] = abi.Adapted(ctypes.addressof(adapters), out)
        self._record("adapt", op, list(products))

    def rope_append(
        self,
        layer: int,
        q: Value,
        k: Value,
        v: Value,
        q_out: Value,
        tables: tuple[NDArray[np.float32], NDArray[np.float32]] | None,
        norms: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        eps: float = 0.0,
        scales: NDArray[np.float32] | None = None,
    ) -> None:
        """Record: normalise and rotate q into q_out, and k; append k, v to the blocks.

        Args:
            tables: cosines and sines, [max_positions, rotary_dim / 2]; None: no rotation.
            norms: weights of RMSNorm for each head of q and of k, [head_dim]; None: no norms.
            scales: factors of q by position, [max_positions]; None: no factors.
        """
        half = 0 if tables is None else tables[0].shape[1]
        cos, sin = (None if tables is None else address_of(tables[i], self.shape.max_positions, half) for i in (0, 1))
        q_norm, k_norm = (None if norms is None else address_of(norms[i], self.shape.head_dim) for i in (0, 1))
        factors = None if scales is None else address_of(scales, self.shape.max_positions)
        op = abi.RopeAppend(cos, sin, q_norm, k_norm, factors, q, k, v, q_out, 2 * half, layer, eps)
        self._record("rope_append", op, (tables, norms, scales))

    def attention(
        self,
        layer: int,
        q: Value,
        out: Value,
        scale: float,
        *,
        window: int = 0,
        soft_cap: float = 0.0,
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """Record causal attention to the keys and values in the blocks; window 0 and soft_cap 0 mean none.

        Args:
            sinks: for each head a score beside those of its keys, whose weight no value has, [heads]; None: none.
        """
        address = None if sinks is None else address_of(sinks, self.shape.heads)
        self._record("attention", abi.Attention(address, q, out, layer, window, scale, soft_cap), sinks)

    def gated(self, gate: Value, up: Value, out: Value, activation: Gate = Gate.SILU) -> None:
        """Record: out is activation(gate) · up, or activation(gate) where up is NO_VALUE."""
        self._record("gated", abi.Gated(gate, up, out, activation))

    def experts(
        self,
        experts: Sequence[ExpertWeights],
        x: Value,
        scores: Value,
        out: Value,
        routing: Routing,
        *,
        activation: Gate = Gate.SILU,
        activations: Activations = Activations.FULL,
        shared: Value = NO_VALUE,
        score: Value = NO_VALUE,
    ) -> None:
        """Record: out is the weighted sum of the outputs of each row's experts, plus what is shared.

        Args:
            experts: their weights.
            scores: by which experts are chosen for a row, as the routing says.
            shared: added, times the sigmoid of `score` if there is one.
        """
        structs = (abi.Expert * len(experts))(*(expert_struct(expert) for expert in experts))
        correction = None if routing.correction is None else address_of(routing.correction, len(experts))
        op = abi.Experts(
            ctypes.addressof(structs), x, scores, shared, score, out, len(experts), routing.used, routing.normalised,
            activation, activations, routing.mixer_threshold, routing.sigmoid, routing.scale, correction,
            routing.groups, routing.groups_used,
        )  # fmt: skip
        self._record("experts", op, (structs, experts, routing))

    def scaled(
        self, x: Value, out: Value, scale: float = 1.0, *, soft_cap: float = 0.0, added: Value = NO_VALUE
    ) -> None:
        """Record: out is scale · x, or soft_cap · tanh(scale · x / soft_cap), plus `added`; soft_cap 0 means none."""
        self._record("scaled", abi.Scaled(x, added, out, scale, soft_cap))

    def gather(self, part: Value, out: Value, table_rows: int = 0) -> None:
        """Record an exchange: out is the columns of the parts of all ranks.

        Args:
            table_rows: rows of the embedding table that each rank holds: each row of out is then that of the rank that
                holds its token; 0: columns.
        """
        self._record("gather", abi.Gather(part, out, table_rows))

    def reduce(self, part: Value, out: Value) -> None:
        """Record an exchange: out is the sum of the parts of all ranks, in their order."""
        self._record("reduce", abi.Reduce(part, out))

    def columns(self, x: Value, out: Value, first: int) -> None:
        """Record: out is some columns of x, from `first` on."""
        self._record("columns", abi.Columns(x, out, first))

    def select(self, x: Value, out: Value) -> None:
        """Record: out is the rows of x that need logits."""
        self._record("select", abi.Select(x, out))

    def sample(self, logits: Value) -> None:
        """Record: sample a token for each row of logits."""
        self._record("sample", abi.Sample(logits))

    def _record(self, name: str, op: ctypes.Structure, retained: Any = None) -> None:
        function = getattr(self._native.handle, f"core_program_{name}")
        self._native.check(name, function(self._program, op), op)
        # The library keeps the addresses in `op` and frees none of them: they must stay valid until close().
        self._retained.append(retained)
