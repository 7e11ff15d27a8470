"""What the sampler of devices has beside that of programs: other formats of logits, lists that overflow, its errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.native import Code, Dtype, Native, NativeError
from headrace_engine.native.abi import SampleRows
from headrace_engine.sampling_params import SamplingParams
from native.buffers import TORCH
from native.device.test_sampling import assert_drawn_alike, choices, random_steps, step
from native.samplers import DeviceSampler


def numbers(rng: np.random.Generator, rows: int, vocab: int, spread: float = 3.0) -> np.ndarray:
    return (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)


@pytest.mark.parametrize("dtype", [Dtype.BFLOAT16, Dtype.FLOAT16])
@pytest.mark.parametrize("vocab", [33, 1000, 10_007])
def test_draws_from_16_bit_logits_what_the_reference_draws(
    device: Native, rng: np.random.Generator, dtype: Dtype, vocab: int
) -> None:
    """Of which many are equal."""
    rows = 24 if vocab < 10_000 else 6
    logits = torch.from_numpy(numbers(rng, rows, vocab)).to(TORCH[dtype]).float()
    steps = random_steps(rows, vocab)
    expected = sample(logits, steps)
    found = DeviceSampler(device, rows, vocab, dtype).draw(logits.numpy(), steps)
    assert_drawn_alike(found, expected, steps)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_id != theirs.token_id or ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


@pytest.mark.parametrize(
    ("top_k", "whole_numbers"), [(40, True), (127, False), (128, False), (500, False), (999, True)]
)
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_top_k_is_exact_where_the_list_of_candidates_overflows(
    device: Native, rng: np.random.Generator, top_k: int, whole_numbers: bool, top_p: float
) -> None:
    """A thousand logits are drawn by 128 threads, which list as many candidates; equal ones are more."""
    logits = numbers(rng, 8, 1000, 1.0)
    if whole_numbers:
        logits = np.round(logits)
    steps = [step(SamplingParams(top_k=top_k, top_p=top_p, seed=random.getrandbits(64))) for _ in range(8)]
    found = DeviceSampler(device, 8, 1000).draw(logits, steps)
    assert_drawn_alike(found, sample(torch.from_numpy(logits), steps), steps)


@pytest.mark.parametrize("top_k", [2, 3, 5])
def test_top_k_keeps_as_many_ids_and_no_more(device: Native, top_k: int) -> None:
    """All ids are nearly as likely, so that each that is kept is drawn by some of 64 seeds."""
    logits = np.tile(-1e-3 * np.arange(1000, dtype=np.float32), (64, 1))
    steps = [step(SamplingParams(top_k=top_k, seed=seed)) for seed in range(64)]
    found = DeviceSampler(device, 64, 1000).draw(logits, steps)
    assert {sampled.token_id for sampled in found} == set(range(top_k))


def test_the_most_likely_of_a_thousand_equal_ids_are_the_first(device: Native) -> None:
    steps = [step(SamplingParams(seed=1, top_logprobs=20, logprobs=True))]
    (found,) = DeviceSampler(device, 1, 1000).draw(np.zeros((1, 1000), np.float32), steps)
    assert [token_id for token_id, _ in found.top] == list(range(20))
    assert [value for _, value in found.top] == pytest.approx([-np.log(1000)] * 20, abs=1e-6)


def test_of_a_thousand_equal_ids_the_first_is_taken(device: Native) -> None:
    """Each of 128 threads has eight of them."""
    steps = [step(SamplingParams(temperature=0)), step(SamplingParams(top_k=1, seed=1))]
    found = DeviceSampler(device, 2, 1000).draw(np.zeros((2, 1000), np.float32), steps)
    assert choices(found) == [(0, ""), (0, "")]


RIGHT = {"logits": 4096, "sampling": 4096, "sampled": 4096, "scratch": 4096, "rows": 1, "vocab": 8, "dtype": 1}
WRONG = [
    ("logits", 0, "logits", Code.NULL_POINTER),
    ("sampling", 4100, "sampling", Code.MISALIGNED),
    ("sampled", 0, "sampled", Code.NULL_POINTER),
    ("scratch", 4097, "scratch", Code.MISALIGNED),
    ("top_ids", 4096, "top_logprobs", Code.NULL_POINTER),
    ("rows", -1, "rows", Code.BAD_COUNT),
    ("vocab", 0, "vocab", Code.BAD_EXTENT),
    ("dtype", 9, "dtype", Code.UNKNOWN_DTYPE),
]


@pytest.mark.parametrize(("field", "value", "named", "code"), WRONG)
def test_a_wrong_argument_is_an_error_that_names_it(
    device: Native, field: str, value: Any, named: str, code: Code
) -> None:
    with pytest.raises(NativeError, match=f"^sample_rows: {named} = ") as caught:
        device.launch("sample_rows", SampleRows(**{**RIGHT, field: value}), 0)
    assert caught.value.code is code


def test_no_rows_is_no_work(device: Native) -> None:
    device.launch("sample_rows", SampleRows(vocab=8, dtype=1), 0)
