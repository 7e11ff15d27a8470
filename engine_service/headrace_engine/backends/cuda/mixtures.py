"""Mixtures of experts on a CUDA device: the rows of each expert, multiplied by torch's grouped products.

Nothing waits for the host: where each expert's rows end is known to the device alone, so that steps are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace_engine.backends.cuda.weights.fused import spanning
from headrace_engine.backends.torch.experts import route
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.experts import Expert
from headrace_engine.models.spec import DecoderSpec, ExpertsSpec

MULTIPLE = 8
"""Grouped products take rows of a multiple of this many entries."""


def check_experts(plan: CorePlan, spec: DecoderSpec) -> None:
    """Refuse mixtures that this backend does not compute.

    Raises:
        InvalidArgument: names the field.
    """
    if spec.experts is None:
        return
    for name in ("weight_quant", "activation_quant"):
        if getattr(plan, name) != "NONE":
            text = f"= {getattr(plan, name)}: the cuda backend takes mixtures of experts as numbers alone"
            raise InvalidArgument.unsupported(f"config.{name}", text)
    for name, size in (("a hidden size", spec.hidden_size), ("experts of a width", spec.experts.width)):
        if size % MULTIPLE:
            text = f"has {name} of {size}; the cuda backend takes multiples of {MULTIPLE}"
            raise InvalidArgument.unsupported("config.model_path", text)


@dataclass(frozen=True, slots=True)
class _Stacked:
    """The weights of a layer's experts.

    Attributes:
        first: of gates and ups, [count, 2 · width, hidden].
        down: [count, hidden, width].
        first_bias, down_bias: their biases, [count, outputs]; None: there are none.
    """

    first: Tensor
    down: Tensor
    first_bias: Tensor | None
    down_bias: Tensor | None


class Mixtures:
    """The mixtures of a model, whose weights lie side by side.

    Args:
        spec: its experts.
        gated: see Ops.
    """

    def __init__(self, spec: ExpertsSpec, gated: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._spec = spec
        self._gated = gated
        self._stacked: dict[int, _Stacked] = {}

    def routed(
        self, x: Tensor, scores: Tensor, experts: Sequence[Expert[Tensor]], correction: Tensor | None = None
    ) -> Tensor:
        """Return the weighted sums of the outputs of each row's experts, [rows, hidden], summed in float32."""
        chosen, weights = route(scores, self._spec, correction)
        layer = self._layer(experts)
        numbers, order = chosen.flatten().sort(stable=True)
        every = torch.arange(self._spec.count, device=x.device)
        ends = torch.searchsorted(numbers, every, right=True).to(torch.int32)
        inputs = x[order // self._spec.used]
        gate, up = _products(inputs, layer.first, layer.first_bias, numbers, ends).split(self._spec.width, dim=1)
        outputs = _products(self._gated(gate, up), layer.down, layer.down_bias, numbers, ends)
        sums = torch.empty(outputs.shape, dtype=torch.float32, device=x.device)
        sums[order] = outputs.float()
        total: Tensor = (sums.unflatten(0, (len(x), -1)) * weights[..., None]).sum(1)
        return total.to(x.dtype)

    def _layer(self, experts: Sequence[Expert[Tensor]]) -> _Stacked:
        """Return the weights of a layer's experts."""
        key = experts[0].gate.data_ptr()
        if key not in self._stacked:
            self._stacked[key] = _Stacked(
                _joined([part for expert in experts for part in (expert.gate, expert.up)], len(experts)),
                _joined([expert.down for expert in experts], len(experts)),
                _joined([part for expert in experts for part in (expert.gate_bias, expert.up_bias)], len(experts)),
                _joined([expert.down_bias for expert in experts], len(experts)),
            )
        return self._stacked[key]


def _joined(parts: Sequence[Tensor | None], count: int) -> Any:
    """Return what lies side by side as one tensor, by expert; None: there are no such parts."""
    there = [part for part in parts if part is not None]
    return spanning(there).unflatten(0, (count, -1)) if there else None


def _products(rows: Tensor, matrices: Tensor, biases: Tensor | None, numbers: Tensor, ends: Tensor) -> Tensor:
    """Return the products of rows with their matrices [count, out, in], plus their biases [count, out].

    Args:
        numbers: which matrix each row is multiplied with, in ascending order.
        ends: where the rows of each matrix end.
    """
    products: Tensor = torch.nn.functional.grouped_mm(rows, matrices.transpose(1, 2), offs=ends)
    return products if biases is None else products + biases[numbers]
