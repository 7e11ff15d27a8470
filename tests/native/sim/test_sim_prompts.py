"""Captured steps that hold prompts, on the simulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headrace_engine.backends.cuda.device import buckets
from headrace_engine.backends.cuda.runner import CudaRunner
from headrace_engine.config import ActivationQuant, KvCacheMode, WeightQuant
from headrace_engine.core.runner import Sampled, SequenceStep
from native.sim_runs import BLOCKS, GREEDY, Sequences, plan_for
from support.backends.runners import ready
from support.backends.same_tokens import TINY_MODEL, scores_agree
from support.sim import device as sim

pytestmark = pytest.mark.usefixtures("simulator")

PROMPTS = [[(7 * number + row) % 250 for row in range(rows)] for number, rows in enumerate((1, 40, 5, 17, 63))]
STEPS = ([0, 1], [0, 2, 3], [4], [0, 1, 4], [1, 3, 4, 2, 0])
"""Sequences of each step: prompts alone, one-row sequences beside the rest of a prompt, and one-row sequences alone."""
STORED = {
    "numbers": {},
    "kv codes": {"kv_cache_mode": KvCacheMode.INT8},
    "int8 rows": {
        "weight_quant": WeightQuant.INT8,
        "weight_quant_group_size": 0,
        "activation_quant": ActivationQuant.INT8,
    },
}


def opened(path: Path, **changes: object) -> CudaRunner:
    runner = ready(sim.make_runner(plan_for(path, **changes)))
    assert isinstance(runner, CudaRunner)
    return runner


def computed(runner: CudaRunner, follow: list[list[int]] | None = None) -> Sequences:
    """Prompts in chunks of 30 ids, which begin while others go on."""
    sequences = Sequences(runner, PROMPTS, chunk=30, follow=follow)
    for which in STEPS:
        sequences.step(which)
    return sequences


@pytest.mark.parametrize("changes", STORED.values(), ids=STORED)
def test_captured_prompts_give_the_scores_of_eager_ones(model_path: Path, changes: dict[str, object]) -> None:
    """Products of other numbers of rows may round differently; all else is the same."""
    eager = opened(model_path, **changes)
    assert eager._steps is not None
    eager._steps._prompt_graphs = None
    expected = computed(eager)
    follow = [[sampled.token_id or 0 for sampled in drawn] for drawn in expected.drawn]
    got = computed(opened(model_path, **changes), follow)

    def tops(sequences: Sequences) -> list[list[tuple[int, float]]]:
        return [list(sampled.top) for drawn in sequences.drawn for sampled in drawn]

    assert len(tops(got)) == 11
    scores_agree(tops(expected), tops(got), TINY_MODEL)


def test_a_captured_step_launches_its_end_alone(model_path: Path, launched: list[str]) -> None:
    runner = opened(model_path)
    launched.clear()
    computed(runner)
    assert set(launched) == {"copy_blocks", "sample_rows"}
    assert launched.count("sample_rows") == len(STEPS) - 1, "the third step samples nothing"


def test_steps_of_many_rows_are_launched_op_by_op(
    model_path: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_MOST_ROWS", 64)
    runner = opened(model_path)
    for rows, eager in ((64, False), (65, True)):
        launched.clear()
        runner.run([SequenceStep([3] * rows, 0, range(BLOCKS), GREEDY)])
        assert ("prefill_attention" in launched) == eager


def test_rows_that_pad_a_step_store_nothing(model_path: Path) -> None:
    """A step of 42 rows is computed as one of 64, and changes the blocks of its own rows alone."""
    runner = opened(model_path)
    assert runner._pool is not None
    kept = [pool.clone() for pool in runner._pool.tensors]
    Sequences(runner, [PROMPTS[1], PROMPTS[0], [9]]).step([0, 1, 2])
    for before, pool in zip(kept, runner._pool.tensors, strict=True):
        changed = {int(block) for block in (before != pool).any(1).nonzero()}
        assert changed == {0, 1, 2, BLOCKS, 2 * BLOCKS}


def test_a_chunk_without_logits_is_computed_too(model_path: Path) -> None:
    """Nothing is sampled in the first step; the second is that of the whole prompt."""
    runner = opened(model_path)
    step = SequenceStep(PROMPTS[1], 0, range(BLOCKS), GREEDY)
    (whole,) = runner.run([step])
    assert runner.run([replace(step, token_ids=PROMPTS[1][:20], sampling=None)]) == []
    (rest,) = runner.run([replace(step, token_ids=PROMPTS[1][20:], start=20)])
    assert_alike(whole, rest)


def assert_alike(expected: Sampled, got: Sampled) -> None:
    scores_agree([expected.top], [got.top], TINY_MODEL)
