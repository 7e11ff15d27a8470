"""The weights of a mixture of experts, as a decoder hands them to its backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace_engine.models.spec import DecoderSpec

Tensor = TypeVar("Tensor")

_PARTS = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Expert(Generic[Tensor]):
    """One expert: down · (activation(gate · x) * up · x), each product with its bias, if there are some.

    Attributes:
        gate, up: [width, hidden].
        down: [hidden, width].
        gate_bias, up_bias: [width].
        down_bias: [hidden].
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Shared(Generic[Tensor]):
    """The output of the expert of all tokens.

    Attributes:
        out: its outputs, [rows, hidden].
        score: the scores whose sigmoids multiply them, [rows, 1]; None: factors of 1.
    """

    out: Tensor
    score: Tensor | None


def experts_by_layer(spec: DecoderSpec, weights: Mapping[str, Tensor]) -> dict[int, Sequence[Expert[Tensor]]]:
    """Return the experts of each layer that has some, in their order."""
    if spec.experts is None:
        return {}
    numbers = range(spec.experts.count)
    return {
        layer: [_expert(weights, f"layers.{layer}.experts.{number}.") for number in numbers]
        for layer, each in enumerate(spec.layers)
        if each.experts
    }


def _expert(weights: Mapping[str, Tensor], prefix: str) -> Expert[Tensor]:
    matrices = (weights[f"{prefix}{name}"] for name in _PARTS)
    return Expert(*matrices, *(weights.get(f"{prefix}{name}_bias") for name in _PARTS))
