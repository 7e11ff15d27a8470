"""What rules do to logits on the torch backend, id by id, against transformers."""

from __future__ import annotations

import random

import pytest
import torch
from headrace_engine.backends.torch.sampling.logits import changed_logits
from headrace_engine.sampling_params import SamplingParams
from support.backends.logit_processors import CASES, VOCAB, Case, random_history, ruled_step

GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_logit_is_what_transformers_makes_of_it(case: Case) -> None:
    seeds = random.sample(range(10**6), 40)
    histories = [random_history(seed) for seed in seeds]
    logits = torch.randn(len(seeds), VOCAB) * 4
    changed = changed_logits(logits, [ruled_step(case, *history, GREEDY) for history in histories])
    for row, (ids, prompt_length) in enumerate(histories):
        expected = case.reference(ids, logits[row], prompt_length)
        assert changed[row].tolist() == expected.tolist(), f"seed {seeds[row]}"
