"""How often a sampler draws other ids than the torch sampler, and whether two decisions lay within rounding there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.sampling.philox import philox, seed_key, uniform
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.core.runner import SequenceStep
from headrace_engine.sampling_params import SamplingParams
from native.samplers import Samplers
from numpy.typing import NDArray

SCORE, MASS = 1e-4, 1e-6
"""Two scores, or a mass and the edge of a cut, that are closer than this may be decided either way."""

SHARE = 1e-5
"""Of draws that may differ so."""

WAYS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in product((0.3, 0.8, 1.0, 1.7), (0, 1, 5, 40), (1.0, 0.9, 0.5), (0.0, 0.05))
]
Floats = NDArray[np.float64]


def step(params: SamplingParams, position: int = 0, index: int = 0) -> SequenceStep:
    return SequenceStep([0], 0, [0], params, position=position, index=index)


def scores(logits: NDArray[np.float32], step: SequenceStep) -> Floats:
    """What every id of a row comes to before any cut."""
    params = step.sampling
    assert params is not None
    ids = torch.arange(len(logits))
    low, high = seed_key([params.seed], torch.device("cpu"))
    counter = (torch.full_like(ids, step.position), ids, torch.full_like(ids, step.index), torch.zeros_like(ids))
    word, *_ = philox(counter, (low.expand(len(ids)), high.expand(len(ids))))
    noise = -torch.log(-torch.log1p(-uniform(word)))
    scaled: Floats = logits.astype(np.float64) / params.temperature
    return scaled + noise.numpy()


def distance(logits: NDArray[np.float32], step: SequenceStep, first: int, second: int) -> float:
    """How far apart the two decisions are that could make the one id of the other, 1 being too far."""
    params = step.sampling
    assert params is not None
    found = scores(logits, step)
    near = [abs(found[first] - found[second]) / SCORE]
    weights = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    if params.top_k:
        kth = np.sort(weights)[-min(params.top_k, len(weights))]
        weights = np.where(weights < kth, 0, weights)
    for token in first, second:  # Which of them the cuts keep.
        if params.top_p < 1:
            above = weights[weights > weights[token]].sum() / weights.sum()
            near.append(abs(above - params.top_p) / MASS)
        if params.min_p:
            near.append(abs(weights[token] / weights.max() - params.min_p) / MASS)
    return min(near)


def batches(
    rng: np.random.Generator, count: int, rows: int, vocab: int
) -> Iterator[tuple[NDArray, list[SequenceStep]]]:
    """Rows of logits of every spread, each with a seed, a place and cuts of its own."""
    chance = random.Random(int(rng.integers(2**63)))
    for _ in range(count):
        spreads = rng.choice([0.0, 0.5, 2.0, 8.0], (rows, 1))
        logits = (rng.standard_normal((rows, vocab)) * spreads).astype(np.float32)
        yield (
            logits,
            [
                step(
                    replace(chance.choice(WAYS), seed=chance.getrandbits(64)),
                    chance.randrange(10**5),
                    chance.randrange(4),
                )
                for _ in range(rows)
            ],
        )


def differences(samplers: Samplers, rng: np.random.Generator, count: int, rows: int, vocab: int) -> list[float]:
    """Of all draws that differ, how far apart the decisions are."""
    sampler, found = samplers.make(rows, vocab), []
    for logits, steps in batches(rng, count, rows, vocab):
        ours, theirs = sampler.draw(logits, steps), sample(torch.from_numpy(logits), steps)
        for row, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one.token_id != other.token_id:
                assert one.token_id is not None
                assert other.token_id is not None
                found.append(distance(logits[row], steps[row], one.token_id, other.token_id))
    return found


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_draws_differ_within_rounding_alone_and_seldom(fast_samplers: Samplers, rng: np.random.Generator) -> None:
    count, rows, vocab = 125, 2000, 500
    found = differences(fast_samplers, rng, count, rows, vocab)
    print(f"{len(found)} of {count * rows} draws differ, farthest decisions {max(found, default=0):.3g} of what may be")
    assert all(apart < 1 for apart in found)
    assert len(found) <= max(1, SHARE * count * rows)


def test_ties_within_rounding_are_found(rng: np.random.Generator) -> None:
    """A logit is moved until its score is another one's within a tenth of what may differ; farther ones are too far."""
    logits = rng.standard_normal(50).astype(np.float32)
    one = step(SamplingParams(seed=int(rng.integers(2**63))), 5, 1)
    order = np.argsort(-scores(logits, one))
    for offset, near in ((SCORE / 10, True), (SCORE * 10, False)):
        moved = logits.copy()
        moved[order[1]] += np.float32(scores(logits, one)[order[0]] - scores(logits, one)[order[1]] - offset)
        assert (distance(moved, one, int(order[0]), int(order[1])) < 1) == near


def test_edges_of_cuts_within_rounding_are_found() -> None:
    """The first two of 0.5, 0.3, 0.2 have 0.8 of the mass: top_p decides about the third there."""
    logits = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    for top_p, near in ((0.8, True), (0.85, False)):
        assert (distance(logits, step(SamplingParams(top_p=top_p, seed=3)), 1, 2) < 1) == near
    for min_p, near in ((0.4, True), (0.5, False)):
        assert (distance(logits, step(SamplingParams(min_p=min_p, seed=3)), 1, 2) < 1) == near


def test_near_ties_are_decided_as_the_reference_decides_them(fast_samplers: Samplers, rng: np.random.Generator) -> None:
    """Scores of the best two are moved within a hundredth of what may differ: far below what float32 tells apart."""
    rows, vocab = 40, 50
    steps = [step(SamplingParams(seed=int(rng.integers(2**63)), temperature=0.9), place) for place in range(rows)]
    logits = rng.standard_normal((rows, vocab)).astype(np.float32)
    for row, one in enumerate(steps):
        found = scores(logits[row], one)
        first, second = np.argsort(-found)[:2]
        logits[row, second] += np.float32(0.9 * (found[first] - found[second]))
    ours, theirs = fast_samplers.draw(logits, steps), sample(torch.from_numpy(logits), steps)
    for row, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.token_id is not None
        assert other.token_id is not None
        best = np.sort(scores(logits[row], steps[row]))[-2:]
        assert best[1] - best[0] < SCORE / 100
        assert one.token_id == other.token_id or distance(logits[row], steps[row], one.token_id, other.token_id) < 1
