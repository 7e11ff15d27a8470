"""Products that a gate follows: computed at once, with the bits of one op after the other."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.native import Cpu, Dtype, Format, Gate, Matrix, Product, Program
from native.one_program import OneProgram, Values, random_weight

INPUTS, OUTPUTS = 96, 100
FORMS = {
    "bfloat16": Matrix(OUTPUTS, INPUTS, Format.BFLOAT16),
    "int8": Matrix(OUTPUTS, INPUTS, Format.INT8, scales=Dtype.FLOAT16, zero=128),
    "int4": Matrix(OUTPUTS, INPUTS, Format.INT4, 32, Dtype.FLOAT16, offsets=True),
}


@pytest.mark.parametrize("rows", [1, 3, 40, 300])
@pytest.mark.parametrize("form", FORMS)
def test_a_gate_after_its_products_changes_no_bit(cpu: Cpu, rng: np.random.Generator, form: str, rows: int) -> None:
    x = rng.standard_normal((rows, INPUTS)).astype(np.float32)
    bias = rng.standard_normal(OUTPUTS).astype(np.float32)
    (gate, _), (up, _) = (random_weight(rng, cpu, FORMS[form]) for _ in range(2))

    def record(program: Program, v: Values) -> None:
        products = [Product(gate, v["gate"], bias), Product(up, v["up"])]
        for product in products:
            program.linear(v["x"], [product])
        program.gated(v["gate"], v["up"], v["apart"], Gate.GELU_TANH)
        program.linear(v["x"], products)
        program.gated(v["gate"], v["up"], v["together"], Gate.GELU_TANH)

    got = OneProgram(cpu, {"x": x}, dict.fromkeys(("gate", "up", "apart", "together"), OUTPUTS), record).run()
    assert np.isfinite(got["apart"]).all()
    assert got["apart"].any()
    np.testing.assert_array_equal(got["together"], got["apart"])


def test_a_gate_may_replace_what_the_products_read(cpu: Cpu, rng: np.random.Generator) -> None:
    x = rng.standard_normal((40, INPUTS)).astype(np.float32)
    (gate, _), (up, _) = (random_weight(rng, cpu, Matrix(INPUTS, INPUTS, Format.BFLOAT16)) for _ in range(2))

    def record(program: Program, v: Values) -> None:
        products = [Product(gate, v["gate"]), Product(up, v["up"])]
        program.linear(v["x"], products)
        program.gated(v["gate"], v["up"], v["apart"])
        program.linear(v["x"], products)
        program.gated(v["gate"], v["up"], v["x"])

    got = OneProgram(cpu, {"x": x}, dict.fromkeys(("gate", "up", "apart"), INPUTS), record).run()
    np.testing.assert_array_equal(got["x"], got["apart"])
