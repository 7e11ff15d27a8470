"""Timed cases: single ops, and whole steps of a model's shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from headrace_engine.native import Activations, Cpu, Format, Kv, Matrix, Product, Program, Value

from bench.kernels.limits import Limits
from bench.kernels.programs import FORMATS, Timed, copies_of, random_copies

SMOLLM2 = [(960, 576), (3072, 576), (576, 1536), (49152, 576)]
QWEN = [(4864 * 2, 896), (151936, 896)]
ROWS = [1, 4, 16, 64, 512]
_QUANTIZED_ROWS = (1, 16, 512)  # also timed with 8-bit activations
_PROMPT_STARTS = (0, 1536, 7680)  # positions before a piece of a prompt
_HEAD = 40000  # outputs above which a matrix is a head, which has few rows


@dataclass(frozen=True)
class Case:
    """A timed op.

    Attributes:
        amount: minimum bytes or operations, whichever takes longer at the machine's limits.
        unit: GB/s or GOP/s.
        limit: limit of the machine, in that unit.
        timed: makes its program.
    """

    op: str
    shape: str
    kind: str
    rows: str
    amount: float
    unit: str
    limit: float
    timed: Any

    @property
    def name(self) -> str:
        """Name by which the command line selects it."""
        return f"{self.op} {self.shape} {self.kind} {self.rows}"


def _bound(nbytes: float, operations: float, rate: float, limits: Limits) -> tuple[float, str, float]:
    if nbytes / limits.memory >= operations / rate:
        return nbytes, "GB/s", limits.memory
    return operations, "GOP/s", rate


def products(limits: Limits, numbers_of_rows: Sequence[int] = ()) -> Iterator[Case]:
    """Return products of a packed matrix with rows; all kinds of activations, where numbers of rows are given."""
    for outputs, inputs in SMOLLM2 + QWEN:
        for kind, form in FORMATS.items():
            for rows in numbers_of_rows or ROWS:
                if outputs > _HEAD and rows > 64:
                    continue
                matrix = Matrix(outputs, inputs, **form)
                yield _product(limits, outputs, inputs, kind, matrix, rows, Activations.FULL)
                if matrix.is_integer and (numbers_of_rows or rows in _QUANTIZED_ROWS):
                    yield _product(limits, outputs, inputs, kind, matrix, rows, Activations.INT8)


def _product(
    limits: Limits, outputs: int, inputs: int, kind: str, matrix: Matrix, rows: int, activations: Activations
) -> Case:
    codes = activations is Activations.INT8
    bits = {"bf16": 16, "int8": 8, "int8 g32": 9, "int4 g32": 5, "iq4 g32": 4.5}[kind]
    rate = limits.of("amx_int8" if codes else "amx_bf16", "dot_bf16" if kind == "bf16" else "vnni_int8")
    bound = _bound(outputs * inputs * bits / 8, 2.0 * outputs * inputs * rows, rate, limits)

    def timed(cpu: Cpu) -> Timed:
        count = copies_of(matrix.packed_bytes(cpu.native))
        weights = random_copies(cpu, matrix, count)

        def record(program: Program, v: dict[str, Value]) -> None:
            for weight in weights:
                program.linear(v["x"], [Product(weight, v["out"])], activations)

        return Timed(cpu, {}, [(0, 1)] * rows, {"x": inputs, "out": outputs}, record, count)

    kind = f"{kind}, codes" if codes else kind
    return Case("product", f"{outputs}x{inputs}", kind, f"{rows} rows", *bound, timed)


def attentions(limits: Limits) -> Iterator[Case]:
    """Return attention over bfloat16 blocks: single rows after a context, and pieces of prompts, over codes too."""
    for heads, kv_heads, dim in ((9, 3, 64), (32, 8, 128)):
        shape = f"{heads}/{kv_heads}x{dim}"
        for sequences, context in ((1, 256), (1, 2048), (16, 256), (16, 2048)):
            nbytes = sequences * context * kv_heads * dim * 4
            operations = 4.0 * sequences * context * heads * dim
            bound = _bound(nbytes, operations, limits.of("amx_bf16", "dot_bf16"), limits)
            timed = _attention(heads, kv_heads, dim, [(context - 1, 1)] * sequences, copies_of(nbytes))
            yield Case("attention", shape, "bf16", f"{sequences} after {context}", *bound, timed)
        for start in _PROMPT_STARTS:
            operations = 4.0 * heads * dim * (512 * start + 512 * 513 / 2)
            bound = _bound(0, operations, limits.of("amx_bf16", "dot_bf16"), limits)
            rows = f"512 ids after {start}" if start else "prompt of 512"
            for kind, kv in (("bf16", Kv.BFLOAT16), ("int8", Kv.INT8)):
                timed = _attention(heads, kv_heads, dim, [(start, 512)], 4, kv)
                yield Case("attention", shape, kind, rows, *bound, timed)


def _attention(
    heads: int, kv_heads: int, dim: int, sequences: list[tuple[int, int]], layers: int, kv: Kv = Kv.BFLOAT16
) -> Any:
    def record(program: Program, v: dict[str, Value]) -> None:
        for layer in range(layers):
            program.attention(layer, v["q"], v["out"], dim**-0.5)

    def timed(cpu: Cpu) -> Timed:
        shape = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "kv": kv}
        return Timed(cpu, shape, sequences, {"q": heads * dim, "out": heads * dim}, record, layers)

    return timed


def samplers(limits: Limits) -> Iterator[Case]:
    """Return sampling of one token per row of logits."""
    ways: dict[str, dict[str, Any]] = {
        "greedy": {},
        "t 0.8": {"temperature": 0.8},
        "t 0.8, p 0.95": {"temperature": 0.8, "top_p": 0.95},
        "t 0.8, k 40, logprob": {"temperature": 0.8, "top_k": 40, "logprobs": 1},
    }
    for vocab in (49152, 151936):
        for way, sampling in ways.items():
            for rows in (1, 16):
                yield _sampler(limits, vocab, way, sampling, rows)


def _sampler(limits: Limits, vocab: int, way: str, sampling: dict[str, Any], rows: int) -> Case:
    def timed(cpu: Cpu) -> Timed:
        def record(program: Program, v: dict[str, Value]) -> None:
            program.sample(v["logits"])

        return Timed(cpu, {"vocab": vocab}, [(0, 1)] * rows, {"logits": vocab}, record, 1, sampling)

    return Case("sampler", str(vocab), way, f"{rows} rows", 4.0 * vocab * rows, "GB/s", limits.memory, timed)


class _Model:
    """SmolLM2's shape with random weights."""

    hidden, inner, heads, kv_heads, dim, layers, vocab = 576, 1536, 9, 3, 64, 30, 49152

    def __init__(self, cpu: Cpu, kind: str) -> None:
        form, q, kv = FORMATS[kind], self.heads * self.dim, self.kv_heads * self.dim
        head = form if form["format"] is Format.BFLOAT16 else FORMATS["int8"]
        sizes = {
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "gate": (self.inner, self.hidden),
            "up": (self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }
        self.weights = {name: random_copies(cpu, Matrix(*size, **form), self.layers) for name, size in sizes.items()}
        self.head = random_copies(cpu, Matrix(self.vocab, self.hidden, **head), 1)[0]
        self.ones = np.ones(self.hidden, np.float32)
        self.widths = {"x": self.hidden, "sum": self.hidden, "q": q, "k": kv, "v": kv, "mixed": q}
        self.widths |= {
            "gate": self.inner,
            "up": self.inner,
            "gated": self.inner,
            "logits_x": self.hidden,
            "logits": self.vocab,
        }

    def record(self, program: Program, v: dict[str, Value], only: str) -> None:
        """Record the ops of a step; or only the products, the attention, or the rest."""
        everything = not only
        if everything or only == "rest":
            program.embed(self.head, v["sum"])
        for layer in range(self.layers):
            self._layer(program, v, layer, only)
        if everything or only == "rest":
            program.norm(self.ones, v["x"], v["x"], 1e-5, residual=v["sum"], residual_out=v["sum"])
            program.select(v["x"], v["logits_x"])
        if everything or only == "products":
            program.linear(v["logits_x"], [Product(self.head, v["logits"])])
        if everything or only == "rest":
            program.sample(v["logits"])

    def _layer(self, program: Program, v: dict[str, Value], layer: int, only: str) -> None:
        def linear(x: str, **outs: str) -> None:
            if not only or only == "products":
                program.linear(v[x], [Product(self.weights[name][layer], v[out]) for name, out in outs.items()])

        def norm() -> None:
            if not only or only == "rest":
                program.norm(self.ones, v["x"], v["x"], 1e-5, residual=v["sum"], residual_out=v["sum"])

        norm()
        linear("x", q="q", k="k", v="v")
        if not only or only == "rest":
            angles = np.ones((program.shape.max_positions, self.dim // 2), np.float32)
            program.rope_append(layer, v["q"], v["k"], v["v"], v["q"], (angles, angles))
        if not only or only == "attention":
            program.attention(layer, v["q"], v["mixed"], self.dim**-0.5)
        linear("mixed", o="x")
        norm()
        linear("x", gate="gate", up="up")
        if not only or only == "rest":
            program.gated(v["gate"], v["up"], v["gated"])
        linear("gated", down="x")


def steps(limits: Limits) -> Iterator[Case]:
    """Return whole steps of SmolLM2's shape, and their parts: sequences after 256 tokens, and prompts."""
    weights = 106e6 + 49152 * 576
    for kind in ("bf16", "int8 g32", "int4 g32"):
        bits = {"bf16": 2, "int8 g32": 9 / 8, "int4 g32": 5 / 8}[kind]
        nbytes = 106e6 * bits + 49152 * 576 * (2 if kind == "bf16" else 1)
        batches = {f"{count} after 256": [(255, 1)] * count for count in (1, 16)}
        batches |= {f"prompt of {length}": [(0, length)] for length in (128, 512)}
        batches |= {f"512 ids after {start}": [(start, 512)] for start in _PROMPT_STARTS if start}
        for batch, sequences in batches.items():
            tokens = sum(length for _, length in sequences)
            operations = 2 * (106e6 * tokens + (weights - 106e6) * len(sequences))
            bound = _bound(nbytes, operations, limits.of("amx_bf16", "dot_bf16"), limits)
            for only in ("", "products", "attention", "rest"):
                yield Case("step", only or "whole", kind, batch, *bound, _step(kind, sequences, only))


def _step(kind: str, sequences: list[tuple[int, int]], only: str) -> Any:
    def timed(cpu: Cpu) -> Timed:
        model = _Model(cpu, kind)
        shape = {"layers": model.layers, "heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.dim}
        return Timed(
            cpu,
            {**shape, "vocab": model.vocab},
            sequences,
            model.widths,
            lambda program, values: model.record(program, values, only),
        )

    return timed
