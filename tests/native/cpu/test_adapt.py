"""What adapters add to products, against float64: rows of several adapters and of none, at every instruction set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from headrace_engine.native import Cpu, LowRank
from headrace_engine.native.errors import NativeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native.one_program import Floats, OneProgram

INPUTS, WIDTHS, MOST = 37, (64, 5, 530), 19


def random(rng: np.random.Generator, *shape: int) -> Floats:
    """Return random float32 numbers."""
    return rng.standard_normal(shape, dtype=np.float32)


class Case:
    """Three products of one x, and adapters of some ranks; the third product is not changed by the last one."""

    def __init__(self, cpu: Cpu, rows: int, ranks: Sequence[int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x = random(rng, rows, INPUTS)
        self.outs = [random(rng, rows, width) for width in WIDTHS]
        self.ranks = [[rank, rank, 0 if rank is ranks[-1] else rank] for rank in ranks]
        self.a = [[random(rng, rank, INPUTS) for rank in each] for each in self.ranks]
        self.b = [[random(rng, rank, width) for rank, width in zip(each, WIDTHS, strict=True)] for each in self.ranks]
        tables = [(LowRank * len(ranks))() for _ in WIDTHS]
        for number, (first, second) in enumerate(zip(self.a, self.b, strict=True)):
            for table, a, b in zip(tables, first, second, strict=True):
                table[number] = LowRank(a.ctypes.data, b.ctypes.data, len(a))
        inputs = {"x": self.x, **{f"out{number}": out for number, out in enumerate(self.outs)}}
        self.program = OneProgram(
            cpu,
            inputs,
            {"hidden": len(WIDTHS) * MOST},
            lambda program, at: program.adapt(
                at["x"], at["hidden"], [(table, at[f"out{number}"]) for number, table in enumerate(tables)], MOST
            ),
            adapters=len(ranks),
        )

    def run(self, adapters: Sequence[int]) -> list[Floats]:
        """Return the products of rows with these adapters."""
        values = self.program.run(adapters=adapters)
        return [values[f"out{number}"] for number in range(len(WIDTHS))]

    def expected(self, adapters: Sequence[int], product: int) -> np.ndarray:
        """Return one of them in float64."""
        out = self.outs[product].astype(np.float64)
        for row, adapter in enumerate(adapters):
            if adapter:
                a, b = (each[adapter - 1][product].astype(np.float64) for each in (self.a, self.b))
                out[row] += self.x[row] @ a.T @ b
        return out


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(1, MOST), min_size=3, max_size=3, unique=True),
    st.integers(0, 1000),
)
def test_each_row_gets_what_its_adapter_adds(cpu: Cpu, adapters: list[int], ranks: list[int], seed: int) -> None:
    case = Case(cpu, len(adapters), ranks, seed)
    for product, found in enumerate(case.run(adapters)):
        expected = case.expected(adapters, product)
        assert np.abs(found - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())
        bare = [row for row, adapter in enumerate(adapters) if not adapter]
        assert np.array_equal(found[bare], case.outs[product][bare])


def test_a_row_depends_on_no_other(cpu: Cpu) -> None:
    case = Case(cpu, 40, (5, 8, 19), 1)
    together = case.run([1, 2, 3, 0, 2] * 8)
    for row, adapter in enumerate([1, 2, 3, 0, 2]):
        alone = case.run([adapter if each == row else 0 for each in range(40)])
        for found, single in zip(together, alone, strict=True):
            assert np.array_equal(found[row], single[row])


@pytest.mark.parametrize("adapter", [-1, 4])
def test_an_adapter_that_is_not_there_is_refused(cpu: Cpu, adapter: int) -> None:
    case = Case(cpu, 2, (5, 8, 19), 1)
    with pytest.raises(NativeError, match="sequences"):
        case.run([0, adapter])
