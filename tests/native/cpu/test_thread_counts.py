"""Products on several threads, which take tiles from both ends: the bits of one thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from headrace_engine.native import Cpu, Dtype, Format, Matrix, Product, Program
from native.one_program import Floats, OneProgram, Values, random_weight

INPUTS = 192
OUTPUTS = {"a": 450, "b": 130, "c": 64, "gate": 600, "up": 600}
FORMS = {
    "float32": {"format": Format.FLOAT32},
    "bfloat16": {"format": Format.BFLOAT16},
    "int8": {"format": Format.INT8, "scales": Dtype.FLOAT16, "zero": 128},
    "int4": {"format": Format.INT4, "group": 32, "scales": Dtype.FLOAT16, "offsets": True},
}


@pytest.mark.parametrize("rows", [1, 4, 8, 9])
@pytest.mark.parametrize("form", FORMS)
def test_several_threads_multiply_as_one_does(cpu: Cpu, rng: np.random.Generator, form: str, rows: int) -> None:
    x = rng.standard_normal((rows, INPUTS)).astype(np.float32)
    weights = {
        name: random_weight(rng, cpu, Matrix(outputs, INPUTS, **FORMS[form]))[0] for name, outputs in OUTPUTS.items()
    }

    def record(program: Program, v: Values) -> None:
        program.linear(v["x"], [Product(weights[name], v[name]) for name in "abc"])
        program.linear(v["x"], [Product(weights[name], v[name]) for name in ("gate", "up")])
        program.gated(v["gate"], v["up"], v["gated"])

    def run(on: Cpu) -> Mapping[str, Floats]:
        return OneProgram(on, {"x": x}, {**OUTPUTS, "gated": OUTPUTS["up"]}, record).run()

    with Cpu(cpu.native, 1, isa=cpu.isa) as one:
        expected = run(one)
    for _ in range(20):  # in which threads meet at different tiles
        got = run(cpu)
        for name in ("a", "b", "c", "gated"):
            assert np.isfinite(got[name]).all()
            np.testing.assert_array_equal(got[name], expected[name])
