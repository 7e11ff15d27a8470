"""Every sampler against the torch sampler, which computes in float64: programs at every instruction set, devices."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.sampling_params import SamplingParams
from native.samplers import Samplers
from support.backends.exact_sampling import COMBINATIONS, DRAWS, assert_drawn_as_often, exact_probabilities


def step(params: SamplingParams, position: int = 0, index: int = 0, masked: tuple[int, ...] = ()) -> SequenceStep:
    return SequenceStep([0], 0, [0], params, position=position, index=index, masked_ids=masked)


def choices(drawn: Sequence[Sampled]) -> list[tuple[int | None, str]]:
    """Tokens and errors, which are the same on every backend."""
    return [(row.token_id, row.error) for row in drawn]


def assert_drawn_alike(
    found: Sequence[Sampled], expected: Sequence[Sampled], steps: Sequence[SequenceStep], most: int = 1
) -> None:
    """Assert the same tokens and errors, but for few rows whose top_p lies within rounding of a mass.

    Scores are decided in float64. Masses are sums of weights in float32, wrong by some 2e-7, so that of ten million
    draws with top_p four differ: more than one of a hundred rows, or two of 4,000, once in a billion times.
    """
    rows = zip(choices(found), choices(expected), steps, strict=True)
    differing = [step.sampling for ours, theirs, step in rows if ours != theirs]
    assert all(params is not None and params.top_p < 1 for params in differing), differing
    assert len(differing) <= most, differing


ALL_CUTS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.0, 0.3, 1.0, 2.0), (0, 1, 5, 40), (1.0, 0.9, 0.5), (0.0, 0.05)
    )
]


def random_steps(count: int, vocab: int) -> list[SequenceStep]:
    """Every combination of cuts in turn, with random seeds, counters and masks."""
    steps = []
    for params in itertools.islice(itertools.cycle(random.sample(ALL_CUTS, len(ALL_CUTS))), count):
        masked = tuple(random.sample(range(vocab), min(vocab - 1, random.choice((0, 0, 1, 3)))))
        seeded = SamplingParams(
            params.temperature, params.top_k, params.top_p, params.min_p, random.getrandbits(64), logprobs=True
        )
        steps.append(step(seeded, random.randrange(10_000), random.randrange(3), masked))
    return steps


@pytest.mark.parametrize(("vocab", "rows"), [(1, 96), (2, 96), (17, 96), (1000, 96), (49_152, 6), (151_936, 2)])
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_draws_what_the_reference_draws(
    samplers: Samplers, rng: np.random.Generator, vocab: int, rows: int, spread: float
) -> None:
    logits = (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)
    steps = random_steps(rows, vocab)
    expected, found = sample(torch.from_numpy(logits), steps), samplers.draw(logits, steps)
    assert_drawn_alike(found, expected, steps)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_id != theirs.token_id or ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def test_of_equal_logits_cuts_keep_all_and_arg_max_the_first(samplers: Samplers) -> None:
    logits = np.repeat(np.array([[2, 5, 5, 5, 1, 5]], dtype=np.float32), len(ALL_CUTS), 0)
    steps = [step(params, position) for position, params in enumerate(ALL_CUTS)]
    expected, found = sample(torch.from_numpy(logits), steps), samplers.draw(logits, steps)
    assert choices(found) == choices(expected)
    assert all(row.token_id == 1 for row, one in zip(found, ALL_CUTS, strict=True) if one.temperature == 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_row_fails_and_touches_no_other(samplers: Samplers, rng: np.random.Generator, bad: float) -> None:
    logits = rng.standard_normal((6, 100)).astype(np.float32)
    steps = [step(SamplingParams(seed=row)) for row in range(6)]
    undisturbed = samplers.draw(logits, steps)
    for place in (0, 50, 99):
        broken = logits.copy()
        broken[2, place] = bad
        found = samplers.draw(broken, steps)
        assert found == [*undisturbed[:2], Sampled(None, error="logits are not finite"), *undisturbed[3:]]


def test_where_every_id_is_masked_none_is_drawn(samplers: Samplers) -> None:
    everything = tuple(range(20))
    steps = [step(SamplingParams(temperature=t), masked=everything) for t in (0.0, 1.0)]
    assert samplers.draw(np.zeros((2, 20), np.float32), steps) == [Sampled(None)] * 2


def test_ids_beyond_the_vocabulary_mask_nothing(samplers: Samplers) -> None:
    steps = [step(SamplingParams(temperature=0), masked=(20, -1, 2**31 - 1))]
    assert samplers.draw(np.arange(20, dtype=np.float32)[None], steps)[0].token_id == 19


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.8), SamplingParams(temperature=1.3, top_k=50, top_p=0.9)]
)
def test_thousands_of_draws_are_those_of_the_reference(
    fast_samplers: Samplers, rng: np.random.Generator, params: SamplingParams
) -> None:
    rows, vocab = 4_000, 300
    logits = (rng.standard_normal((rows, vocab)) * 2).astype(np.float32)
    seeded = SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, seed=7)
    steps = [step(seeded, row) for row in range(rows)]
    found = fast_samplers.make(rows, vocab).draw(logits, steps)
    assert_drawn_alike(found, sample(torch.from_numpy(logits), steps), steps, most=2)


@pytest.mark.parametrize("top_k", [100, 101, 2**31, 2**32 - 1])
def test_top_k_beyond_the_vocabulary_keeps_all(samplers: Samplers, rng: np.random.Generator, top_k: int) -> None:
    logits = rng.standard_normal((50, 100)).astype(np.float32)
    sampler = samplers.make(50, 100)
    every, kept = ([step(SamplingParams(top_k=k, seed=9), place) for place in range(50)] for k in (0, top_k))
    assert sampler.draw(logits, kept) == sampler.draw(logits, every)


def test_bc051_temperature_comes_before_top_p(samplers: Samplers) -> None:
    """Of [3, 2, 1], the first has 0.67 of the mass; at a temperature of 0.5, more than 0.8."""
    logits = np.repeat(np.array([[3, 2, 1]], np.float32), 500, 0)
    for temperature, kept in ((0.5, {0}), (1.0, {0, 1})):
        steps = [step(SamplingParams(temperature, top_p=0.8, seed=seed)) for seed in range(500)]
        assert {row.token_id for row in samplers.draw(logits, steps)} == kept


@pytest.mark.parametrize(
    "tiny", [{"temperature": t} for t in (1e-5, 1e-4, 1e-38, 5e-324)] + [{"top_p": 1e-6}, {"top_p": 1e-4}], ids=str
)
def test_bc040_tiny_temperature_and_top_p_equal_greedy(
    samplers: Samplers, rng: np.random.Generator, tiny: dict[str, float]
) -> None:
    logits = (rng.standard_normal((20, 50)) * 10).astype(np.float32)
    steps = [step(SamplingParams(**tiny, seed=seed, logprobs=True)) for seed in range(20)]  # type: ignore[arg-type]
    found = samplers.draw(logits, steps)
    assert [row.token_id for row in found] == logits.argmax(1).tolist()
    assert np.isfinite([row.logprob for row in found]).all()


@pytest.mark.parametrize("cuts", COMBINATIONS, ids=str)
def test_ids_come_as_often_as_their_probability(
    fast_samplers: Samplers, rng: np.random.Generator, cuts: dict[str, float]
) -> None:
    logits = rng.standard_normal(12).astype(np.float32) * 1.5
    params = SamplingParams(**cuts, seed=int(rng.integers(2**63)))  # type: ignore[arg-type]
    found = fast_samplers.draw(np.repeat(logits[None], DRAWS, 0), [step(params, i) for i in range(DRAWS)])
    assert_drawn_as_often([row.token_id for row in found], exact_probabilities(logits, **cuts))  # type: ignore[arg-type]


def test_samples_follow_the_distribution_with_most_mass_on_one(
    fast_samplers: Samplers, rng: np.random.Generator
) -> None:
    draws, rows, vocab, heavy = 100_000, 10_000, 200, 0.999
    weights = np.concatenate([[heavy], np.full(vocab - 1, (1 - heavy) / (vocab - 1))])
    logits = np.repeat(np.log(weights).astype(np.float32)[None], rows, 0)
    sampler, counts = fast_samplers.make(rows, vocab), np.zeros(vocab, dtype=np.int64)
    seed = int(rng.integers(2**63))
    for first in range(0, draws, rows):
        steps = [step(SamplingParams(seed=seed), first + row) for row in range(rows)]
        counts += np.bincount([row.token_id for row in sampler.draw(logits, steps)], minlength=vocab)
    others = draws - counts[0]
    expected = draws * (1 - heavy)
    assert abs(others - expected) < 6 * np.sqrt(expected)  # six standard deviations
    assert counts[1:].max() <= 10  # 0.5 expected each


def test_draws_of_the_whole_vocabulary_follow_the_distribution(
    fast_samplers: Samplers, rng: np.random.Generator
) -> None:
    draws, rows, vocab = 60_000, 10_000, 64
    logits = rng.standard_normal(vocab).astype(np.float32) * 1.5
    probabilities = np.exp(logits.astype(np.float64) / 1.2)
    probabilities /= probabilities.sum()
    sampler, counts = fast_samplers.make(rows, vocab), np.zeros(vocab)
    seed = int(rng.integers(2**63))
    for first in range(0, draws, rows):
        steps = [step(SamplingParams(temperature=1.2, seed=seed), first + row) for row in range(rows)]
        counts += np.bincount(
            [row.token_id for row in sampler.draw(np.repeat(logits[None], rows, 0), steps)], minlength=vocab
        )
    expected = draws * probabilities
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 63 + 7 * np.sqrt(2 * 63)  # mean 63, seven standard deviations
