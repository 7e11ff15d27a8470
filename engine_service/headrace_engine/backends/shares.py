"""What a rank holds of a model's matrices and heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace_engine.config import TensorParallelMode
from headrace_engine.models.spec import DecoderSpec

_HEADS = frozenset({"q", "k", "v", "k_spread", "sinks"})
_LAST = frozenset({"o", "down"})
"""The last matrices of attention and MLP, whose inputs are parts. Those of experts are cut by outputs: single ones
have few rows each, and that of all tokens is added to theirs."""
_OUTPUTS = frozenset({"o", "gate", "up", "down", "shared_gate", "shared_up", "shared_down", "embed", "head"})


@dataclass(frozen=True)
class Share:
    """The share of one rank.

    Attributes:
        rank: its number.
        size: number of ranks, which divides the number of KV heads.
        unit: outputs by which parts are cut, of which each backend has its own.
    """

    rank: int
    size: int
    mode: TensorParallelMode = TensorParallelMode.EXACT
    unit: int = 1

    def heads(self, spec: DecoderSpec) -> DecoderSpec:
        """Return the spec with the rank's heads alone."""
        return replace(spec, num_heads=spec.num_heads // self.size, num_kv_heads=spec.num_kv_heads // self.size)

    def width(self, total: int) -> int:
        """Return the width of the parts of so many outputs: too few to be cut by units are cut one by one."""
        unit = self.unit if total >= self.unit * self.size else 1
        return -(-total // (self.size * unit)) * unit

    def is_added(self, name: str) -> bool:
        """Return True if a matrix is cut by inputs, so that products of all ranks are added up, and its bias is not."""
        reduced = self.mode is TensorParallelMode.REDUCED
        return reduced and _stem(name) in _LAST and ".experts." not in name

    def inputs(self, name: str, total: int) -> int | None:
        """Return the width of the parts of a matrix's inputs, as they are computed; None: every rank holds all."""
        if not self.is_added(name):
            return None
        return total // self.size if _stem(name) == "o" else self.width(total)

    def held(self, name: str, outputs: int, inputs: int) -> tuple[int, int]:
        """Return how many outputs and inputs of a matrix the rank holds."""
        return self.part(name, outputs) or outputs, self.inputs(name, inputs) or inputs

    def part(self, name: str, total: int) -> int | None:
        """Return the width of the parts of the outputs of a matrix or bias; None: every rank holds all of it."""
        if _stem(name) in _HEADS:
            return total // self.size
        if _stem(name) in _OUTPUTS and not self.is_added(name):
            return self.width(total)
        return None


def _stem(name: str) -> str:
    return name.rpartition(".")[2].removesuffix("_bias")
