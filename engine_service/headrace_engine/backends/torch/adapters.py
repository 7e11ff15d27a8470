"""The adapters of backends that compute with torch, in memory that is set aside once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headrace_engine.backends.adapters import matrix_shapes, open_planned_adapter
from headrace_engine.backends.torch.linear import linear
from headrace_engine.backends.torch.parallel.share import FEWEST, Share
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.models.adapters.adapter import AdapterFiles, Factors
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.weights import read_tensor


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The factors of all adapters for one matrix, with zeros beyond the rank of each.

    Attributes:
        a: [adapters, rank, inputs].
        b: [adapters, outputs, rank], scaled.
    """

    a: Tensor
    b: Tensor


class TorchAdapters:
    """Factors of up to plan.lora_max_num adapters, of up to plan.lora_max_rank.

    Args:
        dtype, device: format and device of the factors.
        share: what this rank holds of the matrices, and so of their factors; None: all.
    """

    def __init__(
        self, plan: CorePlan, spec: DecoderSpec, dtype: torch.dtype, device: torch.device, share: Share | None = None
    ) -> None:
        self._spec = spec
        self._share = share
        count, rank = plan.lora_max_num, plan.lora_max_rank

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._matrices = {
            name: _Matrix(zeros(count, rank, inputs), zeros(count, outputs, rank))
            for name, (outputs, inputs) in self._shapes().items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all factors."""
        return sum(each.a.nbytes + each.b.nbytes for each in self._matrices.values())

    def _shapes(self) -> dict[str, tuple[int, int]]:
        shapes, share = matrix_shapes(self._spec, self._spec.head_dim), self._share
        if share is None:
            return shapes
        held = {name: share.held(name, *shape) for name, shape in shapes.items()}
        return {name: (max(outputs, FEWEST), inputs) for name, (outputs, inputs) in held.items()}

    def read(self, plan: AdapterPlan) -> Callable[[], None]:
        """Read an adapter; return what puts it into the place of its number.

        Raises:
            BadModel: its files have changed, or do not fit.
        """
        return partial(self._load, plan.number - 1, open_planned_adapter(plan, self._spec))

    def _load(self, number: int, files: AdapterFiles) -> None:
        for name, matrix in self._matrices.items():
            factors = files.factors.get(name)
            matrix.a[number].zero_()
            matrix.b[number].zero_()
            if factors is not None:
                a, b = self._factors(name, factors)
                matrix.a[number, : factors.rank] = a
                # Scaled in float32, as the sum would be.
                matrix.b[number, : len(b), : factors.rank] = b * factors.scale

    def _factors(self, name: str, factors: Factors) -> tuple[Tensor, Tensor]:
        host = torch.device("cpu")
        if self._share is not None:
            return self._share.factors(name, factors, host)
        return read_tensor(factors.a, torch.float32, host), read_tensor(factors.b, torch.float32, host)

    def add(
        self,
        x: Tensor,
        outs: Sequence[Tensor],
        names: Sequence[str],
        rows: Mapping[int, Tensor],
        total: Callable[[Tensor], Tensor] | None = None,
    ) -> list[Tensor]:
        """Add to each out what the adapters of its rows add, and return them; see Ops.adapted.

        Args:
            rows: indices of the rows of each adapter, by its number.
            total: adds up the products of all ranks with parts of x; None: x is whole.
        """
        for number, indices in rows.items():
            mine = x[indices]
            for out, name in zip(outs, names, strict=True):
                matrix = self._matrices[name]
                hidden = linear(mine, matrix.a[number - 1])
                added = linear(hidden if total is None else total(hidden), matrix.b[number - 1])
                out.index_add_(0, indices, added[:, : out.shape[1]])
        return list(outs)
