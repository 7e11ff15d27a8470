"""Philox against the known answers that Random123 publishes, and against plain Python integers."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.backends.torch.sampling.philox import philox, seed_key, uniform
from hypothesis import given
from hypothesis import strategies as st
from support.backends.exact_sampling import philox_on_integers

WORDS = st.integers(0, 2**32 - 1)
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def on_tensors(counter, key):
    words = philox(tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([word]) for word in key))
    return tuple(word.item() for word in words)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_published_answers(counter, key, answer):
    assert on_tensors(counter, key) == answer


@given(st.tuples(*[WORDS] * 4), st.tuples(*[WORDS] * 2))
def test_every_counter_and_key_is_exact(counter, key):
    assert on_tensors(counter, key) == philox_on_integers(counter, key)


def test_shapes_broadcast():
    column, row = torch.arange(3).unsqueeze(1), torch.arange(5)
    words = philox((column, row, torch.tensor(0), torch.tensor(0)), (torch.tensor(7), torch.tensor(8)))
    assert words[0][2, 4].item() == philox_on_integers((2, 4, 0, 0), (7, 8))[0]


@given(st.integers(0, 2**64 - 1))
def test_a_seed_is_its_low_word_then_its_high_word(seed):
    low, high = seed_key([seed], torch.device("cpu"))
    assert (low.item(), high.item()) == (seed % 2**32, seed // 2**32)


def test_uniform_numbers_stay_inside_0_and_1():
    lowest, highest = uniform(torch.tensor([0, 2**32 - 1])).tolist()
    assert lowest == 0.5 * 2**-32
    assert highest == 1 - 0.5 * 2**-32 < 1
