"""Embedding, norm, gate, sums and selection of programs against float64, at every instruction set of this machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from headrace_engine.native import NO_VALUE, Cpu, Dtype, Format, Gate, Matrix, NativeError, Program, Rows, Value
from native.one_program import OneProgram, Values, random_weight

SIZES = [(1, 1), (3, 7), (17, 64), (5, 576), (2, 5000)]

sizes = pytest.mark.parametrize(("rows", "width"), SIZES)


def numbers(rng: np.random.Generator, *size: int) -> np.ndarray:
    return rng.standard_normal(size).astype(np.float32)


def normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    result: np.ndarray = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + eps) * weight
    return result


@sizes
def test_norms_each_row(cpu: Cpu, rng: np.random.Generator, rows: int, width: int) -> None:
    x, weight = numbers(rng, rows, width), numbers(rng, width)

    def record(program: Program, v: Values) -> None:
        program.norm(weight, v["x"], v["out"], 1e-5)

    out = OneProgram(cpu, {"x": x}, {"out": width}, record).run()["out"]
    np.testing.assert_allclose(out, normed(x, weight, 1e-5), rtol=2e-6, atol=1e-6)


@sizes
def test_adds_the_residual_in_place_and_norms_the_sum(
    cpu: Cpu, rng: np.random.Generator, rows: int, width: int
) -> None:
    x, residual, weight = numbers(rng, rows, width), numbers(rng, rows, width), numbers(rng, width)

    def record(program: Program, v: Values) -> None:
        program.norm(weight, v["x"], v["out"], 1e-6, residual=v["residual"], residual_out=v["residual"])

    got = OneProgram(cpu, {"x": x, "residual": residual}, {"out": width}, record).run()
    np.testing.assert_array_equal(got["residual"], x + residual)
    np.testing.assert_allclose(got["out"], normed(x + residual, weight, 1e-6), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@sizes
def test_layer_norms_each_row(cpu: Cpu, rng: np.random.Generator, has_bias: bool, rows: int, width: int) -> None:
    """Of numbers whose mean is large beside their spread, in place and not."""
    x, weight, bias = numbers(rng, rows, width) + np.float32(5), numbers(rng, width), numbers(rng, width)

    def record(program: Program, v: Values) -> None:
        program.layer_norm(weight, bias if has_bias else None, v["x"], v["out"], 1e-5)
        program.layer_norm(weight, bias if has_bias else None, v["x"], v["x"], 1e-5)

    got = OneProgram(cpu, {"x": x}, {"out": width}, record).run()
    wide = x.astype(np.float64) - x.astype(np.float64).mean(axis=1, keepdims=True)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight + (bias if has_bias else 0)
    np.testing.assert_allclose(got["out"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got["x"], got["out"])


@pytest.mark.parametrize("activation", [gate for gate in Gate if gate is not Gate.CLAMPED], ids=lambda gate: gate.name)
@sizes
def test_activates_without_a_gate(cpu: Cpu, rng: np.random.Generator, activation: Gate, rows: int, width: int) -> None:
    """As with factors of 1."""
    x, ones = 3 * numbers(rng, rows, width), np.ones((rows, width), np.float32)

    def record(program: Program, v: Values) -> None:
        program.gated(v["x"], v["ones"], v["out"], activation)
        program.gated(v["x"], NO_VALUE, v["x"], activation)

    got = OneProgram(cpu, {"x": x, "ones": ones}, {"out": width}, record).run()
    np.testing.assert_array_equal(got["x"], got["out"])


def test_a_clamped_gate_needs_what_it_multiplies(cpu: Cpu) -> None:
    def record(program: Program, v: Values) -> None:
        with pytest.raises(NativeError, match=r"^gated: up = "):
            program.gated(v["x"], NO_VALUE, v["x"], Gate.CLAMPED)

    OneProgram(cpu, {"x": np.zeros((2, 8), np.float32)}, {}, record)


@pytest.mark.parametrize("activation", list(Gate), ids=lambda gate: gate.name.lower())
@sizes
def test_gates_each_entry(cpu: Cpu, rng: np.random.Generator, activation: Gate, rows: int, width: int) -> None:
    gate, up = 3 * numbers(rng, rows, width), 4 * numbers(rng, rows, width)

    def record(program: Program, v: Values) -> None:
        program.gated(v["gate"], v["up"], v["gate"], activation)

    out = OneProgram(cpu, {"gate": gate, "up": up}, {}, record).run()["gate"]
    x = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = {
            Gate.SILU: x / (1 + np.exp(-x)),
            Gate.GELU: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
            Gate.GELU_TANH: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            Gate.CLAMPED: np.minimum(x, 7) / (1 + np.exp(-1.702 * np.minimum(x, 7))),
        }[activation]
    factor = 1 + np.clip(up.astype(np.float64), -7, 7) if activation is Gate.CLAMPED else up
    np.testing.assert_allclose(out, expected * factor, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("soft_cap", [0.0, 2.5])
@sizes
def test_scales_caps_and_adds(cpu: Cpu, rng: np.random.Generator, soft_cap: float, rows: int, width: int) -> None:
    x, added = 9 * numbers(rng, rows, width), numbers(rng, rows, width)

    def record(program: Program, v: Values) -> None:
        program.scaled(v["x"], v["out"], 0.75, soft_cap=soft_cap, added=v["added"])
        program.scaled(v["x"], v["x"], 0.75, soft_cap=soft_cap)

    got = OneProgram(cpu, {"x": x, "added": added}, {"out": width}, record).run()
    exact = 0.75 * x.astype(np.float64)
    expected = soft_cap * np.tanh(exact / soft_cap) if soft_cap else exact
    np.testing.assert_allclose(got["x"], expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(got["out"], expected + added, rtol=2e-6, atol=2e-6)


def test_selects_the_wanted_rows_in_order(cpu: Cpu, rng: np.random.Generator) -> None:
    x = numbers(rng, 9, 40)

    def record(program: Program, v: Values) -> None:
        program.select(v["x"], v["logits"])

    got = OneProgram(cpu, {"x": x}, {"logits": 40}, record, wanted=[0, 3, 8]).run()["logits"]
    np.testing.assert_array_equal(got, x[[0, 3, 8]])


@pytest.mark.parametrize("kind", [Format.BFLOAT16, Format.INT8, Format.INT4], ids=lambda kind: kind.name.lower())
def test_embeds_from_any_storage(cpu: Cpu, rng: np.random.Generator, kind: Format) -> None:
    """The ids of these programs count from 0, so that the values are the table."""
    integer: dict[str, Any] = {"group": 32, "scales": Dtype.FLOAT16, "offsets": True}
    table, exact = random_weight(rng, cpu, Matrix(12, 80, kind, **({} if kind is Format.BFLOAT16 else integer)))

    def record(program: Program, v: Values) -> None:
        program.embed(table, v["out"])

    got = OneProgram(cpu, {"x": numbers(rng, 12, 4)}, {"out": 80}, record).run()["out"]
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)


def test_a_value_outside_the_workspace_is_refused_by_name(cpu: Cpu) -> None:
    def record(program: Program, v: Values) -> None:
        with pytest.raises(NativeError, match=r"^gated: out = offset 1000000, width 8, rows 1: does not fit"):
            program.gated(v["x"], v["x"], Value(1_000_000, 8, Rows.TOKENS))
        with pytest.raises(NativeError, match=r"^norm: eps = -1\.0: must be finite and not negative"):
            program.norm(np.ones(8, np.float32), v["x"], v["x"], -1.0)

    OneProgram(cpu, {"x": np.zeros((2, 8), np.float32)}, {}, record)
