"""Timed cases: single ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_engine.native import Activations, Cpu, Kv, Matrix, Product, Program, Value

from bench.kernels.limits import Limits, factors_of
from bench.kernels.programs import FORMATS, Timed, copies_of, random_copies

SMOLLM2 = [(960, 576), (3072, 576), (576, 1536), (49152, 576)]
QWEN = [(4864 * 2, 896), (896, 4864), (151936, 896)]
ROWS = [1, 4, 16, 64, 512]
_QUANTIZED_ROWS = (1, 16, 512)  # also timed with 8-bit activations
PROMPT_STARTS = (0, 1536, 7680)
"""Positions before a piece of a prompt."""
BITS = {"bf16": 16, "int8": 8, "int8 g32": 9, "int4 g32": 5, "iq4 g32": 4.5}
"""Of a weight, scales and offsets included."""
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


def bound_of(nbytes: float, operations: float, rate: float, limits: Limits) -> tuple[float, str, float]:
    """Return the bytes or the operations of an op, whichever take longer, with their unit and the machine's rate."""
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
    bits = BITS[kind]
    rate = limits.peak(factors_of(8 if matrix.codebook else bits, codes))  # values of a codebook are no codes of 4 bits
    bound = bound_of(outputs * inputs * bits / 8, 2.0 * outputs * inputs * rows, rate, limits)

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
            bound = bound_of(nbytes, operations, limits.peak("bfloat16"), limits)
            timed = _attention(heads, kv_heads, dim, [(context - 1, 1)] * sequences, copies_of(nbytes))
            yield Case("attention", shape, "bf16", f"{sequences} after {context}", *bound, timed)
        for start in PROMPT_STARTS:
            operations = 4.0 * heads * dim * (512 * start + 512 * 513 / 2)
            rows = f"512 ids after {start}" if start else "prompt of 512"
            for kind, kv in (("bf16", Kv.BFLOAT16), ("int8", Kv.INT8), ("uint4", Kv.UINT4)):
                bound = bound_of(0, operations, limits.peak("bfloat16" if kv is Kv.BFLOAT16 else "float32"), limits)
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
