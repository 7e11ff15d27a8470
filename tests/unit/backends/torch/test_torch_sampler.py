"""The sampler: which ids stay after each cut, how often each is drawn, and what seeds, masks and bad logits do."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.sampling_params import SamplingParams
from support.backends.exact_sampling import (
    COMBINATIONS,
    DRAWS,
    assert_drawn_as_often,
    exact_probabilities,
    philox_on_integers,
)

VOCAB = 12
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 1.5


def step(position=0, index=0, masked_ids=(), **sampling):
    return SequenceStep([0], 0, [0], SamplingParams(**sampling), position, index, tuple(masked_ids))


def draw(logits, *steps):
    """Ids drawn by each of the steps from the same logits."""
    return [sampled.token_id for sampled in sample(torch.as_tensor(logits).repeat(len(steps), 1), steps)]


def draw_many(logits, count, **sampling):
    """Share of each id among `count` seeds."""
    ids = draw(logits, *(step(seed=seed, **sampling) for seed in range(count)))
    return np.bincount(ids, minlength=len(logits)) / count


@pytest.mark.parametrize("sampling", COMBINATIONS, ids=str)
def test_ids_come_as_often_as_their_probability(sampling):
    ids = draw(LOGITS, *(step(seed=seed, **sampling) for seed in range(DRAWS)))
    assert_drawn_as_often(ids, exact_probabilities(LOGITS, **sampling))


def test_the_score_is_the_logit_with_the_noise_of_philox():
    """The formula in plain Python, whose integers do not overflow."""
    seed, position, index = 0xFEDCBA9876543210, 70_000, 3
    for start in range(50):
        logits = torch.roll(LOGITS, start)
        scores = []
        for token_id, logit in enumerate(logits.tolist()):
            word, *_ = philox_on_integers((position + start, token_id, index, 0), (seed % 2**32, seed >> 32))
            v = float((Fraction(word) + Fraction(1, 2)) / 2**32)
            scores.append(logit / 0.75 - math.log(-math.log1p(-v)))
        best = max(range(VOCAB), key=scores.__getitem__)
        assert draw(logits, step(position + start, index, temperature=0.75, seed=seed)) == [best]


def test_bc051_temperature_comes_before_top_p():
    logits = torch.tensor([3.0, 2.0, 1.0])
    assert draw_many(logits, 500, top_p=0.8, temperature=0.5).tolist() == [1, 0, 0]
    assert set(np.flatnonzero(draw_many(logits, 500, top_p=0.8, temperature=1.0))) == {0, 1}


def test_top_k_comes_before_top_p():
    """Of 0.4, 0.3, 0.2, 0.1 the first two are 0.57 and 0.43 after top_k = 2: the first alone reaches 0.55."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(np.flatnonzero(draw_many(logits, 300, top_p=0.55))) == {0, 1}
    assert set(np.flatnonzero(draw_many(logits, 300, top_p=0.55, top_k=2))) == {0}


def test_ties_with_the_kth_are_kept():
    kept = draw_many(torch.tensor([1.0, 2.0, 1.0, 1.0, 0.9]), 500, top_k=2)
    assert set(np.flatnonzero(kept)) == {0, 1, 2, 3}


def test_top_k_beyond_the_vocabulary_keeps_all():
    everything = draw_many(LOGITS, 200)
    assert draw_many(LOGITS, 200, top_k=2**32 - 1).tolist() == everything.tolist()


def test_ties_at_the_edge_of_top_p_are_kept():
    kept = draw_many(torch.tensor([0.4, 0.2, 0.2, 0.2]).log(), 500, top_p=0.5)
    assert set(np.flatnonzero(kept)) == {0, 1, 2, 3}


def test_top_p_1_keeps_ids_whose_mass_is_lost_in_rounding():
    """The second id has a mass of 1e-30; masked down to it, it is drawn, though the first had all the mass."""
    logits = torch.tensor([0.0, -69.0])
    assert draw(logits, step(masked_ids=[0], top_p=1.0)) == [1]
    assert draw(torch.tensor([40.0, -20.0, -20.5]), step(masked_ids=[0], top_p=1.0 - 1e-16)) in ([1], [2])


def test_min_p_is_relative_to_the_most_likely():
    logits = torch.tensor([0.5, 0.26, 0.24]).log()
    assert set(np.flatnonzero(draw_many(logits, 500, min_p=0.5))) == {0, 1}
    assert set(np.flatnonzero(draw_many(logits, 500, min_p=1.0))) == {0}


def test_min_p_1_keeps_ties_of_the_most_likely():
    assert set(np.flatnonzero(draw_many(torch.tensor([2.0, 2.0, 1.9]), 100, min_p=1.0))) == {0, 1}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "tiny", [{"temperature": t} for t in (1e-5, 1e-4, 1e-38, 5e-324)] + [{"top_p": 1e-6}, {"top_p": 1e-4}]
)
def test_bc040_tiny_temperature_and_top_p_equal_greedy(tiny, seed):
    rows = torch.randn(20, 50, generator=torch.Generator().manual_seed(seed)) * 10
    steps = [step(seed=seed, logprobs=True, **tiny)] * len(rows)
    sampled = sample(rows, steps)
    assert [row.token_id for row in sampled] == rows.argmax(1).tolist()
    assert all(math.isfinite(row.logprob) for row in sampled)


def test_tiny_temperature_still_draws_among_equal_logits():
    shares = draw_many(torch.tensor([1.0, 7.0, 7.0]), 200, temperature=1e-38)
    assert shares[0] == 0
    assert min(shares[1:]) > 0.3


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 0.0, "top_k": 3, "top_p": 0.5}]
)
def test_greedy_takes_the_lowest_id_of_equal_logits(sampling):
    logits = torch.zeros(1000)
    logits[[903, 417, 666]] = 4.0
    assert draw(logits, *(step(seed=seed, **sampling) for seed in range(8))) == [417] * 8


def test_a_row_is_drawn_alike_alone_and_among_others():
    rows = torch.randn(40, 200, generator=torch.Generator().manual_seed(0)) * 2
    choices = product((0.0, 0.7, 1.3), (0, 1, 20), (0.9, 1.0), (0.0, 0.05))
    names = ("temperature", "top_k", "top_p", "min_p")
    steps = [
        step(number, number % 3, [number, 7], seed=number * 2**33, **dict(zip(names, values, strict=True)))
        for number, values in enumerate(choices)
    ]
    rows = rows[: len(steps)]
    alone = [sample(row.unsqueeze(0), [one])[0] for row, one in zip(rows, steps, strict=False)]
    assert sample(rows, steps[: len(rows)]) == alone


def test_seed_position_and_index_each_change_the_draw():
    logits = torch.zeros(10_000)
    ids = draw(logits, step(), step(seed=1), step(seed=2**32), step(position=1), step(index=1))
    assert len(set(ids)) == 5
    assert draw(logits, step(), step()) == [ids[0]] * 2


def test_masked_ids_are_never_drawn():
    masked = [int(i) for i in LOGITS.argsort(descending=True)[:3]]
    steps = [step(seed=seed, masked_ids=masked) for seed in range(500)]
    assert not set(draw(LOGITS, *steps)) & set(masked)
    assert draw(LOGITS, step(temperature=0.0, masked_ids=masked)) == [int(LOGITS.argsort(descending=True)[3])]


def test_a_masked_id_outside_the_vocabulary_masks_nothing():
    assert draw(LOGITS, step(temperature=0.0, masked_ids=[VOCAB, 2**31])) == [int(LOGITS.argmax())]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_k": 5, "top_p": 0.9}], ids=str)
def test_where_all_ids_are_masked_no_token_is_drawn(sampling):
    rows = LOGITS.repeat(2, 1)
    sampled = sample(rows, [step(masked_ids=range(VOCAB), **sampling), step(temperature=0.0)])
    assert sampled == [Sampled(None), Sampled(int(LOGITS.argmax()))]


def test_cuts_count_only_ids_that_are_not_masked():
    """The best two are masked: top_k = 2 keeps the next two."""
    order = [int(i) for i in LOGITS.argsort(descending=True)]
    ids = draw(LOGITS, *(step(seed=seed, masked_ids=order[:2], top_k=2) for seed in range(200)))
    assert set(ids) == set(order[2:4])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}], ids=str)
def test_bc111_a_non_finite_row_fails_alone(bad, sampling):
    rows = LOGITS.repeat(3, 1)
    rows[1, 4] = bad
    before, broken, after = sample(rows, [step(logprobs=True, **sampling)] * 3)
    assert broken == Sampled(None, error="logits are not finite")
    assert before == after == sample(LOGITS.unsqueeze(0), [step(logprobs=True, **sampling)])[0]


def test_logprobs_are_those_of_the_models_own_logits():
    cold = step(temperature=0.1, top_k=2, min_p=0.3, logprobs=True, masked_ids=[int(LOGITS.argmax())])
    plain, asked = sample(LOGITS.repeat(2, 1), [step(), cold])
    assert plain.logprob is None
    expected = LOGITS.double().log_softmax(0)[asked.token_id].item()
    assert asked.logprob == pytest.approx(expected, abs=1e-12)


def test_half_precision_logits_are_drawn_as_their_float32_values():
    rows = LOGITS.bfloat16().repeat(50, 1)
    steps = [step(seed=seed, top_p=0.9, logprobs=True) for seed in range(50)]
    assert sample(rows, steps) == sample(rows.float(), steps)


def test_no_rows_give_no_tokens():
    assert sample(torch.empty(0, VOCAB), []) == []
