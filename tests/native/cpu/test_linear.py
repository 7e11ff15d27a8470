"""Products with packed weights against float64, at every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headrace_engine.native import Activations, Cpu, Dtype, Format, Isa, Matrix, NativeError, Product, Program
from native.one_program import OneProgram, Values, dense, packed, random_weight

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {"format": Format.FLOAT32},
    "bfloat16": {"format": Format.BFLOAT16},
    "float16": {"format": Format.FLOAT16},
    "int8": {"format": Format.INT8, "scales": Dtype.FLOAT32, "zero": 128},
    "int8 groups of 16": {"format": Format.INT8, "group": 16, "scales": Dtype.FLOAT32, "zero": 32},
    "int8 groups of 32, float16": {"format": Format.INT8, "group": 32, "scales": Dtype.FLOAT16, "zero": 128},
    "int8 offsets": {"format": Format.INT8, "group": 128, "scales": Dtype.FLOAT32, "offsets": True},
    "int4": {"format": Format.INT4, "scales": Dtype.FLOAT32, "zero": 8},
    "int4 groups of 64": {"format": Format.INT4, "group": 64, "scales": Dtype.FLOAT32, "zero": 8},
    "int4 offsets, float16": {"format": Format.INT4, "group": 32, "scales": Dtype.FLOAT16, "offsets": True},
    "int4 codebook": {
        "format": Format.INT4,
        "group": 32,
        "scales": Dtype.FLOAT32,
        "codebook": tuple(float(value) for value in np.linspace(-1, 1.3, 16) ** 3),
    },
    "int4 whole codebook": {
        "format": Format.INT4,
        "group": 32,
        "scales": Dtype.FLOAT16,
        "codebook": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 128),
    },
}
SIZES = [(200, 576), (65, 130), (63, 64), (1, 33), (64, 1600), (70, 2500)]
ROWS = [1, 2, 3, 5, 8, 16, 17, 40, 300]

formats = pytest.mark.parametrize("kind", FORMATS)


MOST_INTEGER_ROWS = {Format.INT4: 8, Format.INT8: 2}
"""With more, AMX rounds to bfloat16."""


def limit(cpu: Cpu, kind: str, activations: Activations, rows: int) -> float:
    """Of the error on average, relative to the length of the terms of a sum."""
    if kind in ("float32", "float16"):
        return 2e-6
    integers = kind != "int4 codebook" and (kind != "int4 whole codebook" or cpu.isa is not Isa.AMX)
    if activations is Activations.INT8 and integers:
        return 2e-2
    most = MOST_INTEGER_ROWS.get(FORMATS[kind]["format"], 0)
    words = most and integers and (cpu.isa is not Isa.AMX or rows <= most)
    return 1e-4 if words else 4e-3


def check(got: np.ndarray, x: np.ndarray, weights: np.ndarray, limit: float) -> None:
    """No entry is off by much more than what rounding brings on average."""
    wide = x.astype(np.float64)
    errors = (got - wide @ weights.T) / np.sqrt(wide**2 @ weights.T**2)
    assert np.abs(errors).max() < 8 * limit
    assert errors.size < 64 or np.sqrt(np.mean(errors**2)) < limit


@formats
def test_products_of_any_number_of_rows(cpu: Cpu, rng: np.random.Generator, kind: str) -> None:
    for outputs, inputs in rng.choice(SIZES, 2, replace=False):
        weight, exact = random_weight(rng, cpu, Matrix(int(outputs), int(inputs), **FORMATS[kind]))
        for activations in Activations if weight.matrix.is_integer else [Activations.FULL]:

            def record(program: Program, v: Values, weight: Any = weight, how: Activations = activations) -> None:
                program.linear(v["x"], [Product(weight, v["out"])], how)

            for rows in rng.choice(ROWS, 3, replace=False):
                x = rng.standard_normal((rows, inputs)).astype(np.float32)
                got = OneProgram(cpu, {"x": x}, {"out": int(outputs)}, record).run()["out"]
                check(got, x, exact, limit(cpu, kind, activations, int(rows)))


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind.startswith("int") and kind != "int4 codebook"])
def test_the_largest_products_fit(cpu: Cpu, kind: str) -> None:
    """The largest codes times rows all of whose numbers are the largest, of either sign."""
    matrix = Matrix(70, 400, **FORMATS[kind])
    code = 255 if matrix.format is Format.INT8 else 15
    most = matrix.codebook[code] if matrix.codebook else code
    scales = np.ones((70, matrix.groups), np.float32)
    offsets = np.zeros_like(scales) if matrix.offsets else None
    weight = packed(cpu, matrix, np.full((70, 400), code, np.uint8), scales, offsets)
    x = np.array([1, -1] * 3, np.float32)[:, None].repeat(400, 1)
    for activations in Activations:

        def record(program: Program, v: Values, how: Activations = activations) -> None:
            program.linear(v["x"], [Product(weight, v["out"])], how)

        got = OneProgram(cpu, {"x": x}, {"out": 70}, record).run()["out"]
        expected = x[:, :70] * 400 * (most - (0 if matrix.offsets else matrix.zero))
        np.testing.assert_allclose(got, expected, rtol=1e-2 if cpu.isa is Isa.AMX else 1e-5)


def test_activations_of_8_bits_are_read_by_all_formats(cpu: Cpu, rng: np.random.Generator) -> None:
    """Formats that read them in different forms come to what each comes to alone."""
    weights = [random_weight(rng, cpu, Matrix(70, 130, **FORMATS[kind]))[0] for kind in ("int8", "int4", "bfloat16")]
    x = rng.standard_normal((5, 130)).astype(np.float32)

    def products(first: int, last: int) -> dict[str, np.ndarray]:
        def record(program: Program, v: Values) -> None:
            pairs = zip(weights[first:last], "abc"[first:last], strict=True)
            program.linear(v["x"], [Product(weight, v[name]) for weight, name in pairs], Activations.INT8)

        return dict(OneProgram(cpu, {"x": x}, dict.fromkeys("abc"[first:last], 70), record).run())

    together = products(0, 3)
    for number, name in enumerate("abc"):
        np.testing.assert_allclose(together[name], products(number, number + 1)[name], rtol=1e-5, atol=1e-5)


@formats
def test_a_row_reads_as_it_was_packed(cpu: Cpu, rng: np.random.Generator, kind: str) -> None:
    """Also where rows are packed in two calls."""
    weight, exact = random_weight(rng, cpu, Matrix(130, 100, **FORMATS[kind]))
    np.testing.assert_allclose(dense(weight), exact, rtol=1e-6, atol=1e-6)


def test_several_products_of_one_x_with_biases(cpu: Cpu, rng: np.random.Generator) -> None:
    x = rng.standard_normal((7, 64)).astype(np.float32)
    kinds = ("bfloat16", "int4 offsets, float16", "float32")
    weights = [random_weight(rng, cpu, Matrix(70 + 10 * i, 64, **FORMATS[kind])) for i, kind in enumerate(kinds)]
    biases: list[Any] = [rng.standard_normal(weight.matrix.outputs).astype(np.float32) for weight, _ in weights]
    biases[1] = None

    def record(program: Program, v: Values) -> None:
        outs = [v[name] for name in "abc"]
        triples = zip(weights, outs, biases, strict=True)
        program.linear(v["x"], [Product(weight, out, bias) for (weight, _), out, bias in triples])

    got = OneProgram(cpu, {"x": x}, {"a": 70, "b": 80, "c": 90}, record).run()
    for name, (_, exact), bias in zip("abc", weights, biases, strict=True):
        expected = x.astype(np.float64) @ exact.T + (0 if bias is None else bias)
        np.testing.assert_allclose(got[name], expected, atol=0.2 if name != "c" else 1e-4)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4 offsets, float16"])
def test_a_number_that_is_not_finite_stays_in_its_row(cpu: Cpu, rng: np.random.Generator, kind: str) -> None:
    weight, _ = random_weight(rng, cpu, Matrix(80, 96, **FORMATS[kind]))
    for rows in (2, 5, 20):
        x = rng.standard_normal((rows, 96)).astype(np.float32)
        x[1, 17] = np.inf

        def record(program: Program, v: Values) -> None:
            program.linear(v["x"], [Product(weight, v["out"])])

        got = OneProgram(cpu, {"x": x}, {"out": 80}, record).run()["out"]
        assert not np.isfinite(got[1]).any()
        assert np.isfinite(np.delete(got, 1, 0)).all()


def test_a_product_that_does_not_fit_names_the_field(cpu: Cpu, rng: np.random.Generator) -> None:
    weight, _ = random_weight(rng, cpu, Matrix(80, 96, Format.FLOAT32))
    x = np.zeros((2, 64), dtype=np.float32)

    def record(program: Program, v: Values) -> None:
        with pytest.raises(
            NativeError, match=r"^linear: projections\[0\]\.weight = 0x[0-9a-f]+: does not fit"
        ) as caught:
            program.linear(v["x"], [Product(weight, v["out"])])
        assert caught.value.field == "projections[0].weight"
        square, _ = random_weight(rng, cpu, Matrix(64, 64, Format.FLOAT32))
        with pytest.raises(NativeError, match=r"^linear: projections\[1\]\.out = offset 128, width 80, rows 1: "):
            program.linear(v["x"], [Product(square, v["x"]), Product(square, v["out"])])

    OneProgram(cpu, {"x": x}, {"out": 80}, record)


def test_arrays_that_are_not_those_of_the_matrix_are_refused(cpu: Cpu) -> None:
    codes = np.zeros((8, 32), dtype=np.uint8)
    matrix = Matrix(8, 32, Format.INT8, scales=Dtype.FLOAT32)
    with pytest.raises(ValueError, match="are nothing, not contiguous float32"):
        packed(cpu, matrix, codes)
    with pytest.raises(ValueError, match=r"int64 \(8, 32\), not contiguous uint8 \(8, 32\)"):
        packed(cpu, matrix, codes.astype(np.int64), np.ones((8, 1), np.float32))
    with pytest.raises(ValueError, match="not nothing"):
        packed(cpu, matrix, codes, np.ones((8, 1), np.float32), np.ones((8, 1), np.float32))
    with pytest.raises(ValueError, match="has no Matrix"):
        Matrix(8, 32, Format.INT8, group=24, scales=Dtype.FLOAT32).packed_bytes(cpu.native)
