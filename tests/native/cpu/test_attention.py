"""Rotation, appending and paged attention against float64, at every instruction set of this machine.

Every sequence comes in two steps: what is in the pool already, then the rows whose results are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from headrace_engine.native import Cpu, Isa, Kv, Memory, NativeError, Program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native.kv_pool import hadamard_matrix
from native.one_program import OneProgram, Values

MODELS = [(9, 3, 64), (2, 2, 16), (14, 2, 64), (8, 1, 128), (4, 2, 80), (3, 1, 96), (2, 1, 256)]
"""Query heads, KV heads, entries of a head."""
BATCHES = [
    [(0, 1)],
    [(0, 40), (17, 1), (100, 15)],
    [(1000, 1)],
    [(530, 1), (1023, 1), (3, 1)],
    [(600, 30)],
]
"""Start and length of each sequence."""
VARIANTS = [
    {},
    {"normed": True},
    {"normed": True, "scaled": True, "rotary": 0.0},
    {"window": 100, "soft_cap": 5.0, "rotary": 0.5},
    {"block_size": 64},
    {"sunk": True, "window": 100},
]
MAX_POSITIONS = 1040
KV_ERROR = {Kv.FLOAT32: 1e-6, Kv.BFLOAT16: 2**-8, Kv.INT8: 0.5 / 255, Kv.UINT4: 0.5 / 15}
"""Largest error of an entry: relative to itself for numbers, to the range of its quantized head for codes."""


@dataclass
class Case:
    """Sequences in shuffled blocks, with random queries, keys and values."""

    rng: np.random.Generator
    kv: Kv
    model: tuple[int, int, int]
    batch: list[tuple[int, int]]
    window: int = 0
    soft_cap: float = 0.0
    rotary: float = 1.0
    normed: bool = False
    scaled: bool = False
    sunk: bool = False
    block_size: int = 16

    def __post_init__(self) -> None:
        heads, kv_heads, dim = self.model
        self.half = int(dim * self.rotary) // 2
        counts = [-(-(start + length) // self.block_size) for start, length in self.batch]
        self.num_blocks = sum(counts) + 3
        order = self.rng.permutation(self.num_blocks).astype(np.int32)
        ends = np.cumsum(counts)
        self.tables = [order[end - count : end].copy() for end, count in zip(ends, counts, strict=True)]
        widths = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
        self.inputs = [
            {name: self.rng.standard_normal((start + length, width), np.float32) for name, width in widths.items()}
            for start, length in self.batch
        ]
        self.norms = {name: 1 + 0.2 * self.rng.standard_normal(dim).astype(np.float32) for name in ("q", "k")}
        spread = self.rng.uniform(-40, 40, heads).astype(np.float32)
        self.sinks = np.where(np.arange(heads) % 3 == 0, spread, spread / 40 * 3) if self.sunk else None
        self.scales = (1 + np.arange(MAX_POSITIONS) / 64).astype(np.float32)
        self.angles = np.outer(np.arange(MAX_POSITIONS), 1e4 ** (-np.arange(self.half) / max(1, self.half)))

    def run(self, cpu: Cpu) -> tuple[np.ndarray, OneProgram]:
        """Results of the last rows, and the program that has the pool."""
        before = [(i, 0, start) for i, (start, _) in enumerate(self.batch) if start]
        pool = self._step(cpu, before, None)[1] if before else None
        program, _ = self._step(cpu, [(i, start, length) for i, (start, length) in enumerate(self.batch)], pool)
        return self.out, program

    def _step(self, cpu: Cpu, rows: list[tuple[int, int, int]], pool: Memory | None) -> tuple[OneProgram, Memory]:
        heads, kv_heads, dim = self.model
        inputs = {
            name: np.concatenate([self.inputs[i][name][start : start + length] for i, start, length in rows])
            for name in ("q", "k", "v")
        }
        cos, sin = np.cos(self.angles).astype(np.float32), np.sin(self.angles).astype(np.float32)

        def record(program: Program, v: Values) -> None:
            norms = (self.norms["q"], self.norms["k"]) if self.normed else None
            scales = self.scales if self.scaled else None
            tables = (cos, sin) if self.half else None
            program.rope_append(0, v["q"], v["k"], v["v"], v["turned"], tables, norms, EPS, scales)
            rules = {"window": self.window, "soft_cap": self.soft_cap, "sinks": self.sinks}
            program.attention(0, v["turned"], v["out"], dim**-0.5, **rules)

        program = OneProgram(
            cpu,
            inputs,
            {"turned": heads * dim, "out": heads * dim},
            record,
            max_positions=MAX_POSITIONS,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            block_size=self.block_size,
            kv=self.kv,
        )
        pool = pool or program.pool(self.num_blocks)
        sequences = [(self.tables[i], start, length) for i, start, length in rows]
        self.out = program.run(pool, self.num_blocks, sequences)["out"]
        return program, pool

    def rotated(self, sequence: int, name: str) -> np.ndarray:
        """Queries or keys of a sequence after norm and rotation, float64 [positions, heads, dim]."""
        dim = self.model[2]
        x = self.inputs[sequence][name].astype(np.float64).reshape(-1, self.inputs[sequence][name].shape[1] // dim, dim)
        if self.normed:
            x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPS) * self.norms[name]
        if self.scaled and name == "q":
            x = x * self.scales[: len(x), None, None]
        cos, sin = np.cos(self.angles[: len(x), None]), np.sin(self.angles[: len(x), None])
        a, b = x[..., : self.half], x[..., self.half : 2 * self.half]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * self.half :]], axis=-1)

    def stored(self, program: OneProgram, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a sequence as the pool holds them, float64 [positions, kv_heads, dim]."""
        start, length = self.batch[sequence]
        places = [divmod(position, self.block_size) for position in range(start + length)]
        pairs = [program.program.kv(0, int(self.tables[sequence][block]), slot) for block, slot in places]
        keys, values = (np.stack(half).astype(np.float64) for half in zip(*pairs, strict=True))
        return keys, values

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int) -> np.ndarray:
        """What the rows from start on come to."""
        out: np.ndarray = np.einsum("hqk,khd->qhd", self._weights(q, k, start), self._per_query_head(v))
        return out.reshape(len(q) - start, -1)

    def rounding(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int) -> np.ndarray:
        """Largest error of each entry where queries and weights are rounded to bfloat16, to first order.

        A score is off by a share of the sum of its products' sizes; what that moves is weight between a value and
        the mean. Weights themselves are rounded once more, their sum is not.
        """
        weights, v = self._weights(q, k, start), self._per_query_head(v)
        off = (
            BFLOAT16
            * np.einsum("qhd,khd->hqk", np.abs(q[start:]), np.abs(self._per_query_head(k)))
            * self.model[2] ** -0.5
        )
        mean = np.einsum("hqk,khd->qhd", weights, v)
        moved = np.stack(
            [
                np.einsum("hk,khd->hd", weights[:, row] * off[:, row], np.abs(v - mean[row]))
                for row in range(len(q) - start)
            ]
        )
        bound: np.ndarray = moved + 2 * BFLOAT16 * np.einsum("hqk,khd->qhd", weights, np.abs(v))
        return bound.reshape(len(q) - start, -1)

    def _weights(self, q: np.ndarray, k: np.ndarray, start: int) -> np.ndarray:
        scores = np.einsum("qhd,khd->hqk", q[start:], self._per_query_head(k)) * self.model[2] ** -0.5
        if self.soft_cap:
            scores = self.soft_cap * np.tanh(scores / self.soft_cap)
        at, key = np.arange(start, len(q))[:, None], np.arange(len(q))
        hidden = (key > at) | ((key <= at - self.window) if self.window else False)
        most = scores.max(-1, keepdims=True)
        weights: np.ndarray = np.exp(np.where(hidden, -np.inf, scores - most))
        sunk = 0 if self.sinks is None else np.exp(self.sinks[:, None, None].astype(np.float64) - most)
        return weights / (weights.sum(-1, keepdims=True) + sunk)

    def _per_query_head(self, x: np.ndarray) -> np.ndarray:
        """Keys or values of each head of queries."""
        return np.repeat(x, self.model[0] // self.model[1], axis=1)


EPS = 1e-3
"""Of norms: large enough to matter."""

BFLOAT16 = 2**-9
"""Largest relative error of a number that is rounded to bfloat16."""

EXACT = 1e-4
"""Largest error of what is computed in float32."""


kvs = pytest.mark.parametrize("kv", list(Kv), ids=lambda kv: kv.name.lower())


@kvs
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_attends_to_what_the_pool_holds(cpu: Cpu, rng: np.random.Generator, kv: Kv, variant: dict[str, Any]) -> None:
    for batch in (BATCHES[i] for i in rng.choice(len(BATCHES), 2, replace=False)):
        check(cpu, Case(rng, kv, MODELS[rng.integers(len(MODELS))], batch, **variant))


@given(
    seed=st.integers(0, 2**32 - 1),
    kv=st.sampled_from(Kv),
    group=st.integers(1, 13),
    kv_heads=st.integers(1, 2),
    dim=st.sampled_from([16, 32, 48, 64, 80, 112, 128, 160, 256]),
    batch=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 70)), min_size=1, max_size=3),
    window=st.integers(0, 300),
    soft_cap=st.sampled_from([0.0, 3.0]),
    block_size=st.sampled_from([16, 48]),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_attends_in_any_shape(
    cpu: Cpu, seed: int, kv: Kv, group: int, kv_heads: int, dim: int, batch: list[tuple[int, int]], **variant: Any
) -> None:
    """Numbers of queries that registers are not made for, and pieces of prompts after any context."""
    model = (group * kv_heads, kv_heads, dim)
    check(cpu, Case(np.random.default_rng(seed), kv, model, batch, **variant))


def check(cpu: Cpu, case: Case) -> None:
    """Every row comes to what float64 does, up to the rounding of products in bfloat16."""
    out, program = case.run(cpu)
    rounds = cpu.isa >= Isa.AVX512_BF16 and case.kv is Kv.BFLOAT16
    first = 0
    for i, (start, length) in enumerate(case.batch):
        inputs = (case.rotated(i, "q"), *case.stored(program, i), start)
        error = np.abs(out[first : first + length] - case.attention(*inputs))
        most = 1.1 * case.rounding(*inputs) + EXACT if rounds else EXACT
        assert (error <= most).all(), f"{error.max()} off"
        first += length


@kvs
def test_keys_are_rotated_and_stored_to_the_formats_rounding(cpu: Cpu, rng: np.random.Generator, kv: Kv) -> None:
    case = Case(rng, kv, (4, 2, 80), [(0, 40), (17, 1)], rotary=0.5)
    _, program = case.run(cpu)
    for i in range(2):
        given = (case.rotated(i, "k"), case.inputs[i]["v"].astype(np.float64).reshape(-1, 2, 80))
        for expected, stored in zip(given, case.stored(program, i), strict=True):
            rotated = expected @ hadamard_matrix(80) if kv is Kv.UINT4 else expected
            size = np.abs(expected) if kv in (Kv.FLOAT32, Kv.BFLOAT16) else np.ptp(rotated, axis=-1, keepdims=True)
            assert (np.abs(stored - expected) <= KV_ERROR[kv] * size * 1.01 + 1e-6).all()


@kvs
def test_a_row_has_the_same_bits_alone_and_among_others(cpu: Cpu, rng: np.random.Generator, kv: Kv) -> None:
    """Whoever computes its parts, and however many rows are computed with it."""
    batch = [(700, 1), (530, 9), (0, 20)]
    case = Case(rng, kv, (6, 2, 64), batch)
    together, _ = case.run(cpu)
    row = 0
    for i, (start, length) in enumerate(batch):
        alone = Case(rng, kv, case.model, [(start + length - 1, 1)])
        alone.inputs = [case.inputs[i]]
        row += length
        np.testing.assert_array_equal(alone.run(cpu)[0][0], together[row - 1])


def test_what_does_not_fit_the_shape_is_refused_by_name(cpu: Cpu) -> None:
    x = np.zeros((2, 32), dtype=np.float32)
    cos = np.ones((64, 9), dtype=np.float32)

    def record(program: Program, v: Values) -> None:
        with pytest.raises(NativeError, match=r"^rope_append: rotary_dim = 18: does not fit") as caught:
            program.rope_append(0, v["q"], v["k"], v["k"], v["q"], (cos, cos))
        assert caught.value.field == "rotary_dim"
        with pytest.raises(NativeError, match=r"^attention: layer = 1: does not fit"):
            program.attention(1, v["q"], v["q"], 1.0)
        with pytest.raises(ValueError, match=r"where contiguous float32 \(2,\) is needed"):
            program.attention(0, v["q"], v["q"], 1.0, sinks=np.zeros(3, np.float32))
        with pytest.raises(ValueError, match=r"where contiguous float32 \(64, 9\) is needed"):
            program.rope_append(0, v["q"], v["k"], v["k"], v["q"], (cos, cos[:32]))

    OneProgram(cpu, {"q": x, "k": x[:, :16].copy()}, {}, record, heads=2)
