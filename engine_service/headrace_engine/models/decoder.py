"""One decoder for all families: what is computed, in which order. How it is computed is the backend's business.

Nothing here looks into a tensor: weights and activations are whatever the backend's `Ops` takes and returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace_engine.models.spec import DecoderSpec

Tensor = TypeVar("Tensor")
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows of one sequence in a batch.

    Attributes:
        row: its first row; its rows are consecutive.
        length: number of its rows, at least 1.
        start: position of the first row: the tokens whose keys and values are in the pool already.
        blocks: its block table; position p lies in blocks[p // block_size] at offset p % block_size.
    """

    row: int
    length: int
    start: int
    blocks: Sequence[int]

    @property
    def context(self) -> int:
        """Tokens that the last row attends to, itself included, where no window limits it."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step: prompt chunks and single tokens of any number of sequences.

    Attributes:
        token_ids: the id of each row.
        extents: which rows belong to which sequence, in the order of the rows; they cover all rows.
        logits_rows: rows whose logits are computed, in the order of the result.
    """

    token_ids: Sequence[int]
    extents: Sequence[Extent]
    logits_rows: Sequence[int]

    @property
    def positions(self) -> list[int]:
        """The position of each row in its sequence."""
        return [position for extent in self.extents for position in range(extent.start, extent.context)]


class Ops(Protocol[Tensor, Prepared]):
    """What a decoder needs of a backend. All activations are [rows, width]; the backend owns the KV pool.

    A value in `batch` is what `prepare` made of the Batch. Ops do not change the tensors that they are given.
    """

    def prepare(self, batch: Batch) -> Prepared:
        """Put on the device what the ops below need to know of the batch."""
        ...

    def embedding(self, table: Tensor, batch: Prepared) -> Tensor:
        """The row of table [vocab, hidden] for each token: [rows, hidden]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Each row as x · weight / sqrt(mean(x²) + eps); weight is [width]."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """rms_norm(x + residual), and x + residual: one op, since the sum is needed twice."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product x · weightᵀ + bias; weight is [out, in], bias is [out]: [rows, out]."""
        ...

    def linears(self, x: Tensor, projections: Sequence[tuple[Tensor, Tensor | None]]) -> Sequence[Tensor]:
        """`linear` of one x with several pairs of weight and bias: one op, so that a backend may take them together."""
        ...

    def rotate(self, q: Tensor, k: Tensor, batch: Prepared) -> tuple[Tensor, Tensor]:
        """Rotary embedding of queries [rows, heads · head_dim] and keys [rows, kv_heads · head_dim] by position."""
        ...

    def append_kv(self, layer: int, k: Tensor, v: Tensor, batch: Prepared) -> None:
        """Write keys and values [rows, kv_heads · head_dim] to the blocks of their sequences."""
        ...

    def paged_attention(self, layer: int, q: Tensor, batch: Prepared, window: int | None) -> Tensor:
        """Causal attention of each row to its own sequence in the pool: [rows, heads · head_dim].

        The row's own keys and values have been appended. With a window, a row at position p attends to the
        positions above p - window.
        """
        ...

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) · up, entry by entry."""
        ...

    def select_rows(self, x: Tensor, batch: Prepared) -> Tensor:
        """Select the rows of Batch.logits_rows, in their order."""
        ...


class Interrupted(Exception):
    """Nobody wants what is computed."""


class Decoder(Generic[Tensor, Prepared]):
    """A decoder-only transformer that follows a DecoderSpec.

    Args:
        spec: shape and variant.
        ops: the backend.
        weights: tensors by canonical name: "embed", "layers.{i}.{name}" with name one of input_norm, q, k, v,
            q_bias, k_bias, v_bias, o, o_bias, post_norm, gate, up, down, gate_bias, up_bias, down_bias;
            "final_norm", and "head" unless the spec ties it to "embed".

    Attributes:
        done: products and attentions so far. Other threads may read it.
    """

    def __init__(self, spec: DecoderSpec, ops: Ops[Tensor, Prepared], weights: Mapping[str, Tensor]) -> None:
        self._spec = spec
        self._ops = ops
        self._weights = weights
        self._interrupted = False
        self.done = 0

    @property
    def vocab_size(self) -> int:
        """Ids that the logits are of."""
        return self._spec.vocab_size

    @property
    def embedding(self) -> Tensor:
        """The table of embeddings, [vocab, hidden]."""
        return self._weights["embed"]

    def forward(self, batch: Batch) -> Tensor:
        """Compute all rows, append their keys and values, and return the logits [len(logits_rows), vocab]."""
        rows = self._ops.prepare(batch)
        return self.logits(self._ops.select_rows(self._states(rows), rows))

    def states(self, batch: Batch) -> Tensor:
        """The same, but return the last hidden states of all rows, after the final norm: [rows, hidden]."""
        return self._states(self._ops.prepare(batch))

    def logits(self, states: Tensor) -> Tensor:
        """The logits [rows, vocab] of last hidden states."""
        self._go_on()
        return self._ops.linear(states, self._weights["embed" if self._spec.tied_head else "head"])

    def interrupt(self) -> None:
        """Raise `Interrupted` before the next product or attention. Any thread may call it."""
        self._interrupted = True

    def _go_on(self) -> None:
        self.done += 1
        if self._interrupted:
            raise Interrupted

    def _states(self, rows: Prepared) -> Tensor:
        residual = self._ops.embedding(self._weights["embed"], rows)
        x = self._ops.rms_norm(residual, self._input_norm(0), self._spec.norm_eps)
        for layer in range(self._spec.num_layers):
            x = self._attention(layer, x, rows)
            x, residual = self._add_norm(x, residual, self._weights[f"layers.{layer}.post_norm"])
            x = self._mlp(layer, x)
            x, residual = self._add_norm(x, residual, self._input_norm(layer + 1))
        return x

    def _attention(self, layer: int, x: Tensor, rows: Prepared) -> Tensor:
        q, k, v = self._linears(layer, ("q", "k", "v"), x, self._spec.qkv_bias)
        q, k = self._ops.rotate(q, k, rows)
        self._ops.append_kv(layer, k, v, rows)
        self._go_on()
        out = self._ops.paged_attention(layer, q, rows, self._window(layer))
        return self._linear(layer, "o", out, self._spec.output_bias)

    def _mlp(self, layer: int, x: Tensor) -> Tensor:
        bias = self._spec.mlp_bias
        gate, up = self._linears(layer, ("gate", "up"), x, bias)
        return self._linear(layer, "down", self._ops.silu_mul(gate, up), bias)

    def _linear(self, layer: int, name: str, x: Tensor, bias: bool) -> Tensor:
        self._go_on()
        return self._ops.linear(x, *self._projection(layer, name, bias))

    def _linears(self, layer: int, names: Sequence[str], x: Tensor, bias: bool) -> Sequence[Tensor]:
        self._go_on()
        return self._ops.linears(x, [self._projection(layer, name, bias) for name in names])

    def _projection(self, layer: int, name: str, bias: bool) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of one linear layer."""
        name = f"layers.{layer}.{name}"
        return self._weights[name], self._weights[f"{name}_bias"] if bias else None

    def _add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._ops.add_rms_norm(x, residual, weight, self._spec.norm_eps)

    def _input_norm(self, layer: int) -> Tensor:
        """The norm before a layer; before the layer after the last stands the final one."""
        last = layer == self._spec.num_layers
        return self._weights["final_norm" if last else f"layers.{layer}.input_norm"]

    def _window(self, layer: int) -> int | None:
        return self._spec.windows[layer] if self._spec.windows else None
