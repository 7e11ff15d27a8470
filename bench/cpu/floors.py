"""Lower bounds of a workload on this machine: weights read once per step, products at the peak rate of their format."""

from __future__ import annotations

from dataclasses import dataclass

from bench.kernels.limits import Limits, factors_of
from bench.peers.workloads import LESS_IS_BETTER, Workload


@dataclass(frozen=True)
class Shape:
    """Number of a model's weights in products: in all layers, and in the head, which computes only last rows."""

    layers: int
    head: int


SHAPES = {
    "smol": Shape(30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536), 49152 * 576),
    "qwen": Shape(24 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864), 151936 * 896),
}


@dataclass(frozen=True)
class Floor:
    """The bounds of one format.

    Args:
        limits: limits of the machine, measured in the same run.
        weight_bytes: bytes of weights that a step reads.
        bits: bits per weight.
        codes: activations have 8 bits in products.
    """

    limits: Limits
    weight_bytes: int
    bits: int
    codes: bool

    @property
    def peak(self) -> float:
        """Operations per second of the format's products."""
        return self.limits.peak(factors_of(self.bits, self.codes)) * 1e9

    def seconds(self, shape: Shape, tokens: int, last_rows: int) -> float:
        """Return a step's seconds: the longer of reading and of multiplying the weights. Attention is not counted."""
        operations = 2.0 * (shape.layers * tokens + shape.head * last_rows)
        return max(self.weight_bytes / (self.limits.usual_memory * 1e9), operations / self.peak)

    def of(self, workload: Workload, metric: str) -> float:
        """Return the metric at these bounds: no rate can be higher, no time lower."""
        shape, prompts = SHAPES[workload.model], workload.prompts(0)
        count, tokens = len(prompts), sum(map(len, prompts))
        prefill, step = self.seconds(shape, tokens, count), self.seconds(shape, count, count)
        return {
            "decode": count / step,
            "ttft": prefill * 1e3,
            "prefill": tokens / prefill,
            "output": count * workload.new / (prefill + (workload.new - 1) * step),
        }[metric]


def fraction(metric: str, value: float, floor: float) -> float:
    """Return a figure as a fraction of what is possible."""
    return floor / value if metric in LESS_IS_BETTER else value / floor
