"""The operations that a decoder needs of a backend, and the batch that they compute.

Tensors are opaque here: weights and activations are whatever the backend's `Ops` takes and returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace_engine.models.experts import Expert, Shared

Tensor = TypeVar("Tensor")
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows of one sequence in a batch.

    Attributes:
        row: its first row; its rows are consecutive.
        length: number of its rows, at least 1.
        start: position of the first row: number of tokens whose keys and values are already in the pool.
        blocks: its block table; position p is stored in blocks[p // block_size] at offset p % block_size.
        adapter: number of its adapter, from 1; 0: none.
    """

    row: int
    length: int
    start: int
    blocks: Sequence[int]
    adapter: int = 0

    @property
    def context(self) -> int:
        """Number of tokens that the last row attends to without a window, itself included."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step: prompt chunks and single tokens of any number of sequences.

    Attributes:
        token_ids: the id of each row.
        extents: the rows of each sequence, in order; together they cover all rows.
        logits_rows: rows whose logits are computed, in the order of the result.
    """

    token_ids: Sequence[int]
    extents: Sequence[Extent]
    logits_rows: Sequence[int]

    @property
    def positions(self) -> list[int]:
        """Position of each row in its sequence."""
        return [position for extent in self.extents for position in range(extent.start, extent.context)]


class Ops(Protocol[Tensor, Prepared]):
    """The operations that a backend implements. Activations are [rows, width]; the backend owns the KV pool.

    `batch` is the result of `prepare`. Ops do not modify their arguments.
    """

    def prepare(self, batch: Batch) -> Prepared:
        """Copy to the device what the ops below need of the batch."""
        ...

    def embedding(self, table: Tensor, batch: Prepared) -> Tensor:
        """Look up the row of table [vocab, hidden] for each token: [rows, hidden]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return x · weight / sqrt(mean(x²) + eps) for each row; weight is [width]."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return rms_norm(x + residual), and x + residual: one op, since the sum is needed twice."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Return (x − mean(x)) · weight / sqrt(variance(x) + eps) + bias for each row; weight and bias are [width]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x · weightᵀ + bias: [rows, out]; weight is [out, in], bias is [out]."""
        ...

    def linears(self, x: Tensor, projections: Sequence[tuple[Tensor, Tensor | None]]) -> Sequence[Tensor]:
        """Apply `linear` to one x with several pairs of weight and bias: one op, so that a backend can fuse them."""
        ...

    def adapted(self, x: Tensor, outs: Sequence[Tensor], names: Sequence[str], batch: Prepared) -> Sequence[Tensor]:
        """Return each of the outs, products of x, plus what the adapters of its rows add: scale · x · aᵀ · bᵀ.

        A row's sum depends on its own adapter alone; rows without one stay as they are. The outs are not used after it,
        and may be changed.

        Args:
            names: canonical names of the matrices.
        """
        ...

    def append_kv(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Prepared, norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Write keys and values [rows, kv_heads · head_dim] to the blocks of their sequences.

        Queries [rows, heads · head_dim] and keys are normalised before, if there are norms (the weights for each), and
        rotated as the layer says. Return the queries.
        """
        ...

    def paged_attention(self, layer: int, q: Tensor, batch: Prepared, sinks: Tensor | None = None) -> Tensor:
        """Compute causal attention of each row to its own sequence in the pool: [rows, heads · head_dim].

        The row's own keys and values have been appended. In a layer with a window, a row at position p attends to the
        positions above p - window. Sinks, if there are some, are for each head a score beside those of its keys, whose
        weight no value has.
        """
        ...

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return activation(gate) · up, elementwise, as GateKind says."""
        ...

    def activated(self, x: Tensor) -> Tensor:
        """Return activation(x), elementwise, as GateKind says."""
        ...

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        experts: Sequence[Expert[Tensor]],
        shared: Shared[Tensor] | None,
        correction: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of the outputs of each row's experts, by their weights, and of what is shared: [rows, hidden].

        The spec says how scores [rows, experts] choose them, with a correction [experts] if there is one; of equal
        scores, those of the first experts.
        """
        ...

    def scaled(self, x: Tensor, scale: float, soft_cap: float) -> Tensor:
        """Return scale · x, or soft_cap · tanh(scale · x / soft_cap) if that is above 0."""
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + y, elementwise."""
        ...

    def select_rows(self, x: Tensor, batch: Prepared) -> Tensor:
        """Select the rows of Batch.logits_rows, in their order."""
        ...
