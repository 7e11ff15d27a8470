"""Mixtures of experts against float64, at every instruction set of this machine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from headrace_engine.native import Cpu, ExpertWeights, Gate, Isa, Matrix, NativeError, Program, Routing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native.cpu.test_linear import FORMATS
from native.one_program import OneProgram, Values, random_weight

Exact = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Mixture:
    """Random experts of one storage: as they are packed, and their entries."""

    packed: list[ExpertWeights]
    exact: list[tuple[Exact, Exact, Exact]]


def mixture(rng: np.random.Generator, cpu: Cpu, kind: str, count: int, hidden: int, width: int) -> Mixture:
    sizes = ((width, hidden), (width, hidden), (hidden, width))
    drawn = [[random_weight(rng, cpu, Matrix(*size, **FORMATS[kind])) for size in sizes] for _ in range(count)]
    packed = [ExpertWeights(a[0], b[0], c[0]) for a, b, c in drawn]
    return Mixture(packed, [(a[1], b[1], c[1]) for a, b, c in drawn])


def with_biases(rng: np.random.Generator, experts: Sequence[ExpertWeights]) -> list[ExpertWeights]:
    """The same experts with a random bias for each product."""
    biased = []
    for each in experts:
        sizes = [weight.matrix.outputs for weight in (each.gate, each.up, each.down)]
        biases = [8 * rng.standard_normal(size).astype(np.float32) for size in sizes]
        biased.append(ExpertWeights(each.gate, each.up, each.down, *biases))
    return biased


def program(
    cpu: Cpu,
    inputs: dict[str, Any],
    experts: Sequence[ExpertWeights],
    used: int,
    normalised: bool,
    rows: int = 0,
    gate: Gate = Gate.SILU,
    **routing: Any,
) -> OneProgram:
    hidden = inputs["x"].shape[1]

    def record(made: Program, v: Values) -> None:
        more = {name: v[name] for name in ("shared", "score") if name in v}
        chosen = Routing(used, normalised, **routing)
        made.experts(experts, v["x"], v["scores"], v["out"], chosen, activation=gate, **more)

    return OneProgram(cpu, inputs, {"out": hidden}, record, max_tokens=rows)


def expected(inputs: dict[str, Any], exact: Sequence[Any], used: int, normalised: bool) -> Exact:
    scores = inputs["scores"].astype(np.float64)
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :used]
    weights = np.exp(scores - scores.max(1, keepdims=True))
    picked = np.take_along_axis(weights, chosen, 1)
    picked /= (picked if normalised else weights).sum(1, keepdims=True)
    return mixed(inputs, exact, chosen, picked)


def mixed(inputs: dict[str, Any], exact: Sequence[Any], chosen: Exact, picked: Exact) -> Exact:
    """The sums of the outputs of chosen experts by their weights, and what is shared."""
    x = inputs["x"].astype(np.float64)
    out = np.zeros_like(x)
    for row, (numbers, factors) in enumerate(zip(chosen, picked, strict=True)):
        for number, factor in zip(numbers, factors, strict=True):
            gate, up, down = exact[number]
            gates = gate @ x[row]
            out[row] += factor * (down @ (gates / (1 + np.exp(-gates)) * (up @ x[row])))
    if "shared" in inputs:
        out += inputs["shared"] / (1 + np.exp(-inputs["score"].astype(np.float64)))
    return out


def random_inputs(rng: np.random.Generator, rows: int, hidden: int, count: int) -> dict[str, Any]:
    widths = {"x": hidden, "scores": count, "shared": hidden, "score": 1}
    return {name: rng.standard_normal((rows, width)).astype(np.float32) for name, width in widths.items()}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 5, 40, 300])
def test_every_storage_of_experts(cpu: Cpu, rng: np.random.Generator, kind: str, rows: int) -> None:
    count, hidden, width = 6, 96, 100
    experts, inputs = mixture(rng, cpu, kind, count, hidden, width), random_inputs(rng, rows, hidden, count)
    got = program(cpu, inputs, experts.packed, 2, True).run()["out"]
    wanted = expected(inputs, experts.exact, 2, True)
    limit = 1e-5 if kind.startswith("float") else 1e-2
    assert np.sqrt(np.mean((got - wanted) ** 2)) < limit * np.sqrt(np.mean(wanted**2))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), normalised=st.booleans(), seed=st.integers(0, 2**16))
def test_any_counts_and_sizes(cpu: Cpu, data: st.DataObject, normalised: bool, seed: int) -> None:
    rng, count = np.random.default_rng(seed), data.draw(st.integers(1, 40))
    used, rows = data.draw(st.integers(1, count)), data.draw(st.integers(1, 40))
    hidden, width = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 150))
    experts, inputs = mixture(rng, cpu, "float32", count, hidden, width), random_inputs(rng, rows, hidden, count)
    got = program(cpu, inputs, experts.packed, used, normalised).run()["out"]
    wanted = expected(inputs, experts.exact, used, normalised)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("threshold", [0.02, 0.8, 3.0])
def test_weights_of_sparse_mixer(cpu: Cpu, rng: np.random.Generator, rows: int, threshold: float) -> None:
    """Each is softmax over the scores of experts not before it that are near its own."""
    count, used = 7, 3
    experts, inputs = mixture(rng, cpu, "float32", count, 32, 40), random_inputs(rng, rows, 32, count)
    inputs["scores"] += 1.0
    chosen = np.argsort(-inputs["scores"], axis=1, kind="stable")[:, :used]
    picked = np.zeros(chosen.shape)
    for row, scores in enumerate(inputs["scores"].astype(np.float64)):
        left = set(range(count))
        for place, number in enumerate(chosen[row]):
            top = scores[number]
            near = [each for each in left if (top - scores[each]) / max(abs(scores[each]), top) <= threshold]
            picked[row, place] = 1 / sum(np.exp(scores[each] - top) for each in near)
            left.remove(number)
    got = program(cpu, inputs, experts.packed, used, False, mixer_threshold=threshold).run()["out"]
    wanted = mixed(inputs, experts.exact, chosen, picked)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), normalised=st.booleans(), corrected=st.booleans(), seed=st.integers(0, 2**16))
def test_sigmoids_of_scores(cpu: Cpu, data: st.DataObject, normalised: bool, corrected: bool, seed: int) -> None:
    """They choose experts, with a correction if there is one, and without it they are the weights."""
    rng, count = np.random.default_rng(seed), data.draw(st.integers(1, 40))
    used, rows = data.draw(st.integers(1, count)), data.draw(st.integers(1, 40))
    experts, inputs = mixture(rng, cpu, "float32", count, 24, 20), random_inputs(rng, rows, 24, count)
    correction = rng.standard_normal(count).astype(np.float32) if corrected else None
    sigmoids = 1 / (1 + np.exp(-inputs["scores"].astype(np.float64)))
    chosen = np.argsort(-(sigmoids if correction is None else sigmoids + correction), axis=1, kind="stable")[:, :used]
    picked = np.take_along_axis(sigmoids, chosen, 1)
    if normalised:
        picked /= picked.sum(1, keepdims=True)
    more = {"sigmoid": True, "scale": 2.5, "correction": correction}
    got = program(cpu, inputs, experts.packed, used, normalised, **more).run()["out"]
    wanted = mixed(inputs, experts.exact, chosen, 2.5 * picked)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("normalised", [False, True])
def test_a_correction_of_softmax(cpu: Cpu, rng: np.random.Generator, normalised: bool) -> None:
    """Of scores that are far apart, so that the expert of the highest one need not be chosen."""
    count, used = 9, 3
    experts, inputs = mixture(rng, cpu, "float32", count, 32, 40), random_inputs(rng, 20, 32, count)
    inputs["scores"] *= 60
    correction = 2 * rng.standard_normal(count).astype(np.float32)
    scores = inputs["scores"].astype(np.float64)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    chosen = np.argsort(-(weights + correction), axis=1, kind="stable")[:, :used]
    picked = np.take_along_axis(weights, chosen, 1)
    assert picked.sum(1).min() < 1e-12 < 1e-3 < picked.sum(1).max()
    if normalised:
        picked /= np.maximum(picked.sum(1, keepdims=True), 1e-12)
    got = program(cpu, inputs, experts.packed, used, normalised, correction=correction).run()["out"]
    wanted = mixed(inputs, experts.exact, chosen, picked)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(["softmax", "sigmoid", "softmax corrected"]), seed=st.integers(0, 2**16))
def test_experts_of_some_groups_alone(cpu: Cpu, data: st.DataObject, kind: str, seed: int) -> None:
    """Of groups with the highest score, or with corrections the highest sum of two; of equal ones the first."""
    rng, size, groups = np.random.default_rng(seed), data.draw(st.integers(2, 6)), data.draw(st.integers(1, 7))
    count, allowed = size * groups, data.draw(st.integers(1, groups))
    used, rows = data.draw(st.integers(1, size * allowed)), data.draw(st.integers(1, 20))
    experts, inputs = mixture(rng, cpu, "float32", count, 24, 20), random_inputs(rng, rows, 24, count)
    inputs["scores"][::2] = np.tile(inputs["scores"][::2, :size], groups)  # Groups of the same corrections are equal.
    either = rng.standard_normal((2, size)).astype(np.float32)
    correction = None if kind == "softmax" else either[rng.integers(0, 2, groups)].reshape(-1)
    scores = inputs["scores"].astype(np.float64)
    weights = 1 / (1 + np.exp(-scores)) if kind == "sigmoid" else np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    compared = scores if correction is None else weights + correction
    best = -np.sort(-compared.reshape(rows, groups, size), axis=2)[:, :, : 1 if correction is None else 2].sum(2)
    kept = np.argsort(-best, axis=1, kind="stable")[:, :allowed]
    inside = (np.arange(count) // size == kept[..., None]).any(1)
    chosen = np.argsort(-np.where(inside, compared, -np.inf), axis=1, kind="stable")[:, :used]
    more = {"sigmoid": kind == "sigmoid", "correction": correction}
    run = program(cpu, inputs, experts.packed, used, False, groups=groups, groups_used=allowed, **more)
    wanted = mixed(inputs, experts.exact, chosen, np.take_along_axis(weights, chosen, 1))
    np.testing.assert_allclose(run.run()["out"], wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("corrected", [False, True])
def test_groups_that_are_all_allowed_change_no_bit(cpu: Cpu, rng: np.random.Generator, corrected: bool) -> None:
    experts, inputs = mixture(rng, cpu, "bfloat16", 8, 32, 40), random_inputs(rng, 20, 32, 8)
    more = {"sigmoid": corrected, "correction": rng.standard_normal(8).astype(np.float32) if corrected else None}
    whole = program(cpu, inputs, experts.packed, 3, True, **more).run()["out"]
    grouped = program(cpu, inputs, experts.packed, 3, True, groups=4, groups_used=4, **more).run()["out"]
    np.testing.assert_array_equal(grouped, whole)


@pytest.mark.parametrize("more", [{}, {"sigmoid": True}, {"sigmoid": True, "groups": 2, "groups_used": 1}], ids=str)
def test_a_row_with_a_score_of_no_number_has_none(cpu: Cpu, rng: np.random.Generator, more: dict[str, Any]) -> None:
    experts, inputs = mixture(rng, cpu, "float32", 4, 32, 40), random_inputs(rng, 3, 32, 4)
    more = {**more, "correction": np.zeros(4, np.float32)} if "groups" in more else more
    clean = program(cpu, inputs, experts.packed, 2, True, **more).run()["out"]
    inputs["scores"][1] = [1, 0, np.nan, 5]
    got = program(cpu, inputs, experts.packed, 2, True, **more).run()["out"]
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


def test_a_correction_that_is_no_number_allows_no_group(cpu: Cpu, rng: np.random.Generator) -> None:
    """Of the groups that a row does not use, no expert is taken."""
    experts, inputs = mixture(rng, cpu, "float32", 4, 32, 40), random_inputs(rng, 3, 32, 4)
    inputs["scores"][:] = [1, 0, 2, 5]
    correction = np.array([0, 0, np.nan, 0], np.float32)
    more: dict[str, Any] = {"sigmoid": True, "correction": correction, "groups": 2, "groups_used": 1}
    got = program(cpu, inputs, experts.packed, 2, False, **more).run()["out"]
    chosen, sigmoids = np.tile([0, 1], (3, 1)), 1 / (1 + np.exp(-inputs["scores"].astype(np.float64)))
    wanted = mixed(inputs, experts.exact, chosen, np.take_along_axis(sigmoids, chosen, 1))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_sigmoids_that_are_all_zero_weigh_nothing(cpu: Cpu, rng: np.random.Generator) -> None:
    experts, inputs = mixture(rng, cpu, "float32", 4, 32, 40), random_inputs(rng, 3, 32, 4)
    inputs["scores"][:] = -200
    got = program(cpu, inputs, experts.packed, 2, True, sigmoid=True).run()["out"]
    wanted = inputs["shared"] / (1 + np.exp(-inputs["score"].astype(np.float64)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_biases_and_clamped_gates(cpu: Cpu, rng: np.random.Generator, kind: str, rows: int) -> None:
    """Large enough that gates and ups are limited."""
    experts, inputs = mixture(rng, cpu, kind, 4, 96, 100), random_inputs(rng, rows, 96, 4)
    biased = with_biases(rng, experts.packed)
    got = program(cpu, inputs, biased, 4, True, gate=Gate.CLAMPED).run()["out"]
    scores = np.exp(inputs["scores"].astype(np.float64))
    wanted = inputs["shared"] / (1 + np.exp(-inputs["score"].astype(np.float64)))
    for number, (each, (gate, up, down)) in enumerate(zip(biased, experts.exact, strict=True)):
        assert each.gate_bias is not None
        low = np.minimum(inputs["x"] @ gate.T + each.gate_bias, 7)
        inner = low / (1 + np.exp(-1.702 * low)) * (1 + np.clip(inputs["x"] @ up.T + each.up_bias, -7, 7))
        wanted = wanted + (scores[:, [number]] / scores.sum(1, keepdims=True)) * (inner @ down.T + each.down_bias)
    limit = 1e-5 if kind.startswith("float") else 1e-2
    assert np.sqrt(np.mean((got - wanted) ** 2)) < limit * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_has_the_same_bits_in_any_step(cpu: Cpu, rng: np.random.Generator, kind: str) -> None:
    if cpu.isa is Isa.AMX and kind not in ("float32", "float16"):
        pytest.skip("AMX rounds products of few rows and of many differently")
    experts, inputs = mixture(rng, cpu, kind, 5, 64, 70), random_inputs(rng, 300, 64, 5)
    together = program(cpu, inputs, experts.packed, 3, True).run()["out"]
    for first, last in ((0, 1), (7, 9), (100, 140)):
        part = {name: values[first:last] for name, values in inputs.items()}
        alone = program(cpu, part, experts.packed, 3, True).run()["out"]
        np.testing.assert_array_equal(alone, together[first:last])


def test_of_equal_scores_the_first_experts_are_taken(cpu: Cpu, rng: np.random.Generator) -> None:
    experts, inputs = mixture(rng, cpu, "float32", 6, 32, 40), random_inputs(rng, 3, 32, 6)
    inputs["scores"][:] = [1, 2, 1, 2, 0, 2]
    got = program(cpu, inputs, experts.packed, 4, True).run()["out"]
    np.testing.assert_allclose(got, expected(inputs, experts.exact, 4, True), rtol=0, atol=1e-3)


def test_weights_of_unused_experts_are_not_read(cpu: Cpu, rng: np.random.Generator) -> None:
    """Those of two experts are where nothing is mapped: reading them would end the process."""
    experts, inputs = mixture(rng, cpu, "bfloat16", 5, 64, 70), random_inputs(rng, 20, 64, 5)
    inputs["scores"][:, [1, 4]] = -100
    whole = program(cpu, inputs, experts.packed, 2, False).run()["out"]
    there = [absent(each) if number in (1, 4) else each for number, each in enumerate(experts.packed)]
    np.testing.assert_array_equal(program(cpu, inputs, there, 2, False).run()["out"], whole)


def absent(expert: ExpertWeights) -> ExpertWeights:
    copies = [copy.copy(each) for each in (expert.gate, expert.up, expert.down)]
    for each in copies:
        each.struct = each.matrix.struct(4096)
    return ExpertWeights(*copies)


@pytest.mark.parametrize("groups", [1, 2])
def test_scores_that_are_no_numbers_choose_some_experts(cpu: Cpu, rng: np.random.Generator, groups: int) -> None:
    experts, inputs = mixture(rng, cpu, "float32", 4, 32, 40), random_inputs(rng, 2, 32, 4)
    inputs["scores"][1] = np.nan
    got = program(cpu, inputs, experts.packed, 2, True, groups=groups, groups_used=1).run()["out"]
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


def _used(experts: list[ExpertWeights]) -> tuple[list[ExpertWeights], int]:
    return experts, 5


def _other_shape(experts: list[ExpertWeights]) -> tuple[list[ExpertWeights], int]:
    return [*experts[:3], replace(experts[3], down=experts[3].gate)], 2


def _other_codebook(experts: list[ExpertWeights]) -> tuple[list[ExpertWeights], int]:
    other = copy.copy(experts[3].up)
    other.struct = replace(other.matrix, codebook=(0.5, *other.matrix.codebook[1:])).struct(4096)
    return [*experts[:3], replace(experts[3], up=other)], 2


CHANGES = [(_used, "used"), (_other_shape, "experts"), (_other_codebook, "experts")]


@pytest.mark.parametrize(
    ("groups", "allowed", "field"),
    [(0, 1, "groups"), (3, 1, "groups"), (8, 1, "groups"), (2, 0, "groups_used"), (2, 3, "groups_used"),
     (4, 2, "groups_used"), (4, 3, "groups")],
)  # fmt: skip
def test_groups_that_contradict_are_refused(
    cpu: Cpu, rng: np.random.Generator, groups: int, allowed: int, field: str
) -> None:
    experts, inputs = mixture(rng, cpu, "float32", 4, 32, 40), random_inputs(rng, 2, 32, 4)
    more = {"groups": groups, "groups_used": allowed, "correction": np.zeros(4, np.float32)}
    with pytest.raises(NativeError, match=f"^experts: {field}"):
        program(cpu, inputs, experts.packed, 3, True, **more)


@pytest.mark.parametrize(("change", "field"), CHANGES)
def test_what_is_no_mixture_is_refused(
    cpu: Cpu,
    rng: np.random.Generator,
    change: Callable[[list[ExpertWeights]], tuple[list[ExpertWeights], int]],
    field: str,
) -> None:
    experts, inputs = mixture(rng, cpu, "int4 whole codebook", 4, 32, 40), random_inputs(rng, 2, 32, 4)
    changed, used = change(experts.packed)
    with pytest.raises(NativeError, match=f"^experts: {field}"):
        program(cpu, inputs, changed, used, True)
