"""Timed cases: whole steps of two models' shapes, and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from headrace_engine.native import Activations, Cpu, Format, Matrix, Product, Program, Value

from bench.kernels.cases import BITS, PROMPT_STARTS, Case, bound_of
from bench.kernels.limits import Limits, factors_of
from bench.kernels.programs import FORMATS, Timed, random_copies


@dataclass(frozen=True)
class _Shape:
    """A decoder's."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    layers: int
    vocab: int
    dim: int = 64

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of a layer's matrices."""
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        return {
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "gate": (self.inner, self.hidden),
            "up": (self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }

    @property
    def weights(self) -> int:
        """Of all layers."""
        return self.layers * sum(outputs * inputs for outputs, inputs in self.sizes.values())


_SHAPES = {
    "smol": _Shape(hidden=576, inner=1536, heads=9, kv_heads=3, layers=30, vocab=49152),
    "qwen": _Shape(hidden=896, inner=4864, heads=14, kv_heads=2, layers=24, vocab=151936),
}
"""SmolLM2-135M's, and Qwen2.5-0.5B's."""


class _Model:
    """A model of a shape with random weights."""

    def __init__(self, cpu: Cpu, shape: _Shape, kind: str, activations: Activations) -> None:
        form, self.shape, self.activations = FORMATS[kind], shape, activations
        head = form if form["format"] is Format.BFLOAT16 else FORMATS["int8"]
        sizes = shape.sizes
        self.weights = {name: random_copies(cpu, Matrix(*size, **form), shape.layers) for name, size in sizes.items()}
        self.head = random_copies(cpu, Matrix(shape.vocab, shape.hidden, **head), 1)[0]
        self.ones = np.ones(shape.hidden, np.float32)
        self.widths = {"x": shape.hidden, "sum": shape.hidden, "mixed": shape.heads * shape.dim}
        self.widths |= {name: sizes[name][0] for name in ("q", "k", "v", "gate", "up")}
        self.widths |= {"gated": shape.inner, "logits_x": shape.hidden, "logits": shape.vocab}

    def record(self, program: Program, v: dict[str, Value], only: str) -> None:
        """Record the ops of a step; or only the products, the attention, or the rest."""
        everything = not only
        if everything or only == "rest":
            program.embed(self.head, v["sum"])
        for layer in range(self.shape.layers):
            self._layer(program, v, layer, only)
        if everything or only == "rest":
            program.norm(self.ones, v["x"], v["x"], 1e-5, residual=v["sum"], residual_out=v["sum"])
            program.select(v["x"], v["logits_x"])
        if everything or only == "products":
            program.linear(v["logits_x"], [Product(self.head, v["logits"])], self.activations)
        if everything or only == "rest":
            program.sample(v["logits"])

    def _layer(self, program: Program, v: dict[str, Value], layer: int, only: str) -> None:
        def linear(x: str, **outs: str) -> None:
            if not only or only == "products":
                products = [Product(self.weights[name][layer], v[out]) for name, out in outs.items()]
                program.linear(v[x], products, self.activations)

        def norm() -> None:
            if not only or only == "rest":
                program.norm(self.ones, v["x"], v["x"], 1e-5, residual=v["sum"], residual_out=v["sum"])

        norm()
        linear("x", q="q", k="k", v="v")
        if not only or only == "rest":
            angles = np.ones((program.shape.max_positions, self.shape.dim // 2), np.float32)
            program.rope_append(layer, v["q"], v["k"], v["v"], v["q"], (angles, angles))
        if not only or only == "attention":
            program.attention(layer, v["q"], v["mixed"], self.shape.dim**-0.5)
        linear("mixed", o="x")
        norm()
        linear("x", gate="gate", up="up")
        if not only or only == "rest":
            program.gated(v["gate"], v["up"], v["gated"])
        linear("gated", down="x")


def steps(limits: Limits) -> Iterator[Case]:
    """Return whole steps of two models' shapes, and their parts: sequences after 256 tokens, and prompts."""
    batches = {f"{count} after 256": [(255, 1)] * count for count in (1, 16)}
    batches |= {f"prompt of {length}": [(0, length)] for length in (128, 512)}
    batches |= {f"512 ids after {start}": [(start, 512)] for start in PROMPT_STARTS if start}
    for model, shape in _SHAPES.items():
        for kind in ("bf16", "int8", "int8 g32", "int4 g32"):
            for activations in [Activations.FULL] if kind == "bf16" else Activations:
                for batch, sequences in batches.items():
                    yield from _step_cases(limits, model, shape, kind, activations, batch, sequences)


def _step_cases(
    limits: Limits,
    model: str,
    shape: _Shape,
    kind: str,
    activations: Activations,
    batch: str,
    sequences: list[tuple[int, int]],
) -> Iterator[Case]:
    codes, bits = activations is Activations.INT8, BITS[kind]
    head = shape.vocab * shape.hidden
    nbytes = shape.weights * bits / 8 + head * (2 if kind == "bf16" else 1)
    operations = 2.0 * (shape.weights * sum(length for _, length in sequences) + head * len(sequences))
    bound = bound_of(nbytes, operations, limits.peak(factors_of(bits, codes)), limits)
    kind_name = f"{kind}, codes" if codes else kind
    for only in ("", "products", "attention", "rest"):
        timed = _step(shape, kind, activations, sequences, only)
        yield Case("step", f"{model} {only or 'whole'}", kind_name, batch, *bound, timed)


def _step(shape: _Shape, kind: str, activations: Activations, sequences: list[tuple[int, int]], only: str) -> Any:
    def timed(cpu: Cpu) -> Timed:
        model = _Model(cpu, shape, kind, activations)
        counts = {"layers": shape.layers, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.dim}
        return Timed(
            cpu,
            {**counts, "vocab": shape.vocab},
            sequences,
            model.widths,
            lambda program, values: model.record(program, values, only),
        )

    return timed
