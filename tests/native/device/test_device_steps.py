"""Captured steps that hold prompts, beside the same steps launched op by op."""

from __future__ import annotations

import random

import pytest
import torch
from headrace_engine.backends.cuda.device.device import CudaDevice, Device
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.steps import StepRunner
from headrace_engine.core.runner import SequenceStep
from headrace_engine.native import Kv, Native
from headrace_engine.sampling_params import SamplingParams
from support.backends.same_tokens import Distance, scores_agree
from support.sim.device import SimDevice

from bench.gpu.shapes import BLOCK_SIZE, TINY, Stored, random_model

BLOCKS = 8
"""Of each sequence."""
LISTED = SamplingParams(temperature=0, logprobs=True, top_logprobs=20)
ROUNDING = Distance(most=0.2, median=0.03)
"""Of logits whose standard deviation is 1: products of other numbers of rows may round otherwise."""
SHARES = (
    ((0, 1), (1, 33)),
    ((0, 1), (2, 5), (3, 17)),
    ((4, 64),),
    ((0, 1), (2, 1), (1, 20), (4, 9)),
    ((0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 40)),
    ((5, 2), (0, 1)),
)
"""Sequences of each step, and their rows: prompts alone, beside single rows, and in later chunks."""


def run(native: Native, kv: Kv, ids: list[list[int]], *, captured: bool) -> list[list[tuple[int, float]]]:
    """Return the likeliest ids of each row of logits, of a model with random weights."""
    device: Device = CudaDevice(0) if torch.device(native.device).type == "cuda" else SimDevice()
    torch.manual_seed(5)
    sizes = Sizes(96, len(ids), BLOCKS, BLOCK_SIZE)
    model = random_model(TINY, device, sizes, Stored(kv=kv))
    steps = StepRunner(model, model.pool(BLOCKS * len(ids)))
    if captured:
        steps.capture()
    done, tops = [0] * len(ids), []
    for shares in SHARES:
        batch = []
        for number, length in shares:
            blocks = range(number * BLOCKS, (number + 1) * BLOCKS)
            taken = ids[number][done[number] : done[number] + length]
            batch.append(SequenceStep(taken, done[number], blocks, LISTED, position=done[number], index=number))
            done[number] += length
        tops += [list(sampled.top) for sampled in steps.run(batch)]
    return tops


@pytest.mark.parametrize("kv", [Kv.BFLOAT16, Kv.INT8], ids=lambda kv: kv.name.lower())
def test_captured_prompts_give_the_scores_of_eager_ones(device: Native, kv: Kv) -> None:
    ids = [[random.randrange(TINY.vocab_size) for _ in range(BLOCKS * BLOCK_SIZE)] for _ in range(6)]
    eager, captured = (run(device, kv, ids, captured=captured) for captured in (False, True))
    assert len(captured) == sum(len(shares) for shares in SHARES)
    scores_agree(eager, captured, ROUNDING)
