"""What a step costs follows the tokens that are there, not those that might be, on the simulated device."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.backends.cuda.batch import StepStaging
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.loading import load_model
from headrace_engine.backends.cuda.steps import StepRunner
from headrace_engine.core.runner import Sampled, SequenceStep
from native.sim_runs import GREEDY, SHAPE, plan_for
from support.backends.runners import silent
from support.models.tiny_models import make_tiny_llama
from support.sim import device as sim

pytestmark = pytest.mark.usefixtures("simulator")

LONGEST = 131_072
CONTEXTS = (40, 700, 3, 1500)
AT_ONCE = 2 * 8
"""Thread blocks of the simulated device: two for each multiprocessor."""


@dataclass
class Paid:
    """What steps cost.

    Attributes:
        blocks: of each decode attention, the thread blocks that ran, and those that had something to do.
        launched: names of all ops.
        sent: bytes of each step that went to the device.
    """

    blocks: list[tuple[int, int]] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def clear(self) -> None:
        for each in (self.blocks, self.launched, self.sent):
            each.clear()


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> Paid:
    found, launch, fill = Paid(), sim.SimDevice.launch, StepStaging.fill

    def counted(device: sim.SimDevice, op: str, args: ctypes.Structure) -> None:
        before = counts(device)
        launch(device, op, args)
        found.launched.append(op)
        if op == "decode_attention":
            ran, met = (after - earlier for after, earlier in zip(counts(device), before, strict=True))
            found.blocks.append((ran, met))

    def measured(staging: StepStaging, *args: Any, **named: Any) -> int:
        found.sent.append(fill(staging, *args, **named))
        return found.sent[-1]

    monkeypatch.setattr(sim.SimDevice, "launch", counted)
    monkeypatch.setattr(StepStaging, "fill", measured)
    return found


def counts(device: sim.SimDevice) -> tuple[int, int]:
    run, at_barrier = ctypes.c_int64(), ctypes.c_int64()
    device.native.handle.core_sim_counts(ctypes.byref(run), ctypes.byref(at_barrier))
    return run.value, at_barrier.value


def steps_of(path: Path, max_length: int) -> StepRunner:
    """Steps over random keys and values, for sequences of up to max_length."""
    model = load_model(plan_for(path, max_length=2048, num_blocks=160), sim.SimDevice(), silent)
    model = replace(model, sizes=Sizes(rows=5, sequences=5, blocks=max_length // 16, block_size=16))
    pool, generator = model.pool(160), torch.Generator().manual_seed(3)
    for layer in pool.tensors:
        numbers = layer.view(torch.bfloat16)
        numbers.copy_(torch.randn(numbers.shape, generator=generator))
    return StepRunner(model, pool)


def generate(steps: StepRunner) -> list[list[Sampled]]:
    """Three steps of all sequences."""
    firsts = [0, *accumulate(-(-(context + 3) // 16) for context in CONTEXTS)]
    tables = [list(range(*bounds)) for bounds in pairwise(firsts)]
    return [
        steps.run([SequenceStep([9], context + step, tables[n], GREEDY) for n, context in enumerate(CONTEXTS)])
        for step in range(3)
    ]


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long")
    return make_tiny_llama(path, vocab_size=256, max_position_embeddings=2048, num_hidden_layers=1, **SHAPE)


def test_neither_work_nor_results_know_the_longest_context(long_model: Path, paid: Paid) -> None:
    """Four sequences of 1, 2, 1 and 3 parts, each for two heads: 14 tasks."""
    drawn, costs = [], []
    for max_length in (4096, LONGEST):
        drawn.append(generate(steps_of(long_model, max_length)))
        costs.append((list(paid.blocks), list(paid.launched), list(paid.sent)))
        paid.clear()
    assert drawn[0] == drawn[1]
    assert costs[0] == costs[1]
    assert costs[1][0] == [(AT_ONCE, 14)] * 3


def test_a_step_sends_its_rows_and_what_changed_in_tables(long_model: Path, paid: Paid) -> None:
    """The tables have 143 blocks. The second and third step find them on the device."""
    generate(steps_of(long_model, LONGEST))
    first, *others = paid.sent
    assert first > 143 * 4
    assert len(set(others)) == 1
    assert 0 <= first - others[0] - 37 * (16 + 8) < 16, "37 units of four blocks, each with its two numbers"
    assert others[0] < 512
    assert paid.launched.count("copy_blocks") == 1 + 1, "another one checks the device"


def test_captured_steps_take_the_work_of_each_replay(long_model: Path) -> None:
    """A graph is recorded over sequences of one token; its thread blocks take what each replay's list says."""
    expected = generate(steps_of(long_model, LONGEST))
    steps = steps_of(long_model, LONGEST)
    steps.capture()
    assert generate(steps) == expected
