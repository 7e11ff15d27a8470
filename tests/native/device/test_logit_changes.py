"""What rules do to logits in every sampler, and which ids it tells to be the most likely ones."""

from __future__ import annotations

import itertools
import random
from array import array

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.scheduling.logit_state import bit_mask
from headrace_engine.sampling_params import SamplingParams
from native.device.test_sampling import ALL_CUTS, choices, step
from native.samplers import Samplers
from support.backends.logit_processors import CASES, VOCAB, Case, random_history, ruled_step

GREEDY = SamplingParams(temperature=0.0)


def shifted(steps: list[SequenceStep]) -> list[SequenceStep]:
    """The same steps for a vocabulary with one more id, at the beginning, that no rule knows."""
    return [_shifted(one) for one in steps]


def _shifted(one: SequenceStep) -> SequenceStep:
    changes = one.changes
    assert changes is not None
    allowed = None
    if changes.allowed is not None:
        bits = [i for i in range(32 * len(changes.allowed)) if changes.allowed[i // 32] >> i % 32 & 1]
        allowed = bit_mask([0, *(i + 1 for i in bits)])
    moved = LogitChanges(
        changes.repetition,
        array("i", [i + 1 for i in changes.penalized]),
        changes.penalties,
        array("i", [i + 1 for i in changes.biased]),
        changes.biases,
        allowed,
    )
    return SequenceStep([0], 0, [0], one.sampling, masked_ids=[i + 1 for i in one.masked_ids], changes=moved)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_logit_is_what_transformers_makes_of_it(samplers: Samplers, rng: np.random.Generator, case: Case) -> None:
    """Each id is weighed against one of a known logit, which wins a draw and loses against the next larger number."""
    ids, prompt_length = random_history(int(rng.integers(10**6)))
    own = (rng.standard_normal(VOCAB) * 4).astype(np.float32)
    expected = case.reference(ids, torch.from_numpy(own), prompt_length).numpy()
    rows, steps, winners = [], [], []
    for token_id in range(VOCAB):
        others = [i for i in range(VOCAB) if i != token_id]
        one = ruled_step(case, ids, prompt_length, GREEDY, masked=others)
        logit = expected[token_id]
        weighed = [(np.finfo(np.float32).min, 0)] if logit == -np.inf else [
            (logit, 0), (np.nextafter(logit, np.float32(-np.inf)), token_id + 1),
        ]  # fmt: skip
        for known, winner in weighed:
            rows.append(np.concatenate([[known], own]))
            steps.append(one)
            winners.append(winner)
    found = samplers.draw(np.array(rows, dtype=np.float32), shifted(steps))
    assert [row.token_id for row in found] == winners


def random_changes(vocab: int) -> LogitChanges:
    """Some of everything, on random ids, a few of them beyond the vocabulary."""

    def some(most: int) -> list[int]:
        return random.sample(range(vocab + 3), random.randint(0, min(most, vocab)))

    penalized, biased, allowed = some(50), some(10), None
    if random.random() < 0.5:
        allowed = bit_mask([*random.sample(range(vocab), random.randint(1, vocab)), 0])
        del allowed[random.randint(1, len(allowed)) :]
    return LogitChanges(
        repetition=float(np.float32(random.choice((1.0, 1.3, 0.6)))),
        penalized=array("i", penalized),
        penalties=array("d", [random.uniform(-2, 2) for _ in penalized]),
        biased=array("i", biased),
        biases=array("d", [random.uniform(-9, 9) for _ in biased]),
        allowed=allowed,
    )


@pytest.mark.parametrize(("vocab", "rows"), [(1, 48), (31, 96), (33, 96), (1000, 96), (49_152, 6)])
def test_draws_what_the_reference_draws(samplers: Samplers, rng: np.random.Generator, vocab: int, rows: int) -> None:
    logits = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    steps = []
    for params in itertools.islice(itertools.cycle(random.sample(ALL_CUTS, len(ALL_CUTS))), rows):
        seeded = SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, random.getrandbits(64))
        masked = random.sample(range(vocab), random.choice((0, 0, vocab // 3)))
        steps.append(SequenceStep([0], 0, [0], seeded, 5, 1, masked, random_changes(vocab)))
    assert choices(samplers.draw(logits, steps)) == choices(sample(torch.from_numpy(logits), steps))


def test_extreme_changes_leave_logits_finite(samplers: Samplers) -> None:
    """The smallest repetition penalty and the largest biases: equal where they reach the end of float32."""
    most = float(np.finfo(np.float32).max)
    logits = np.array([[-3.0, 0.0, 2.0, 5.0]], dtype=np.float32)
    smallest = LogitChanges(repetition=2.0**-126, penalized=array("i", [2, 3]), penalties=array("d", [0, 0]))
    biased = LogitChanges(biased=array("i", [0, 1]), biases=array("d", [most, -most]))
    for changes, winner in ((smallest, 3), (biased, 0)):
        for params in (GREEDY, SamplingParams(top_p=0.9, seed=3)):
            steps = [SequenceStep([0], 0, [0], params, changes=changes)]
            found = samplers.draw(logits, steps)
            assert choices(found) == choices(sample(torch.from_numpy(logits), steps)) == [(winner, "")]
    only = LogitChanges(biased=array("i", [1]), biases=array("d", [-most]), allowed=bit_mask([1]))
    assert samplers.draw(logits, [SequenceStep([0], 0, [0], GREEDY, changes=only)])[0].token_id == 1


def test_where_no_id_is_allowed_none_is_drawn(samplers: Samplers) -> None:
    for allowed, masked in ((array("I"), ()), (array("I", [0]), ()), (bit_mask([3]), (3,))):
        steps = [SequenceStep([0], 0, [0], GREEDY, masked_ids=masked, changes=LogitChanges(allowed=allowed))]
        assert choices(samplers.draw(np.zeros((1, 40), np.float32), steps)) == [(None, "")]


@pytest.mark.parametrize("vocab", [1, 5, 16, 19, 20, 21, 1000, 49_152])
def test_the_most_likely_ids_are_told_in_order(samplers: Samplers, rng: np.random.Generator, vocab: int) -> None:
    """Ties too: there the lowest id comes first."""
    logits = rng.standard_normal((6, vocab)).astype(np.float32)
    logits[3:] = np.round(logits[3:])
    logits[5] = np.sort(logits[5])
    params = [SamplingParams(seed=1, logprobs=True, top_logprobs=count) for count in (1, 20, 0, 20, 7, 20)]
    steps = [step(one, masked=(0,) if vocab > 1 else ()) for one in params]
    found = samplers.draw(logits, steps)
    for row, ours, theirs in zip(params, found, sample(torch.from_numpy(logits), steps), strict=True):
        assert len(ours.top) == min(row.top_logprobs, vocab)
        assert [token_id for token_id, _ in ours.top] == [token_id for token_id, _ in theirs.top]
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-5)


def test_most_likely_ids_come_without_log_probability(samplers: Samplers) -> None:
    found = samplers.draw(np.array([[1, 3, 2, 0]], np.float32), [step(SamplingParams(0.0, top_logprobs=2))])
    assert (found[0].logprob, [token_id for token_id, _ in found[0].top]) == (None, [1, 2])
