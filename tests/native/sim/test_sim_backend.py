"""The whole path of the cuda backend on the simulated device: staging, batch sizes, captured steps, drawing, copies."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headrace_engine.backends import torch
from headrace_engine.backends.cuda.runner import CudaRunner
from headrace_engine.config import ComputeDtype, KvCacheMode, WeightQuant
from headrace_engine.core.row_fields import LogitChanges, PromptIds
from headrace_engine.core.runner import BlockCopies, Sampled, SequenceStep
from headrace_engine.errors import InvalidArgument
from headrace_engine.sampling_params import SamplingParams
from native.sim_runs import BLOCKS, GREEDY, SHAPE, Sequences, compare_with_cpu, on_cpu, plan_for, prompts
from support.backends.runners import ready
from support.backends.same_tokens import ROUNDING
from support.models.tiny_models import make_tiny_llama
from support.sim import device as sim

pytestmark = pytest.mark.usefixtures("simulator")


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("mode", [KvCacheMode.DEFAULT, KvCacheMode.INT8])
def test_t1_the_scores_are_those_of_the_cpu_backend(tmp_path: Path, mode: KvCacheMode) -> None:
    plan = plan_for(make_tiny_llama(tmp_path, vocab_size=256, **SHAPE), kv_cache_mode=mode)
    compare_with_cpu(plan, seeds=5, tokens=10)


def test_captured_steps_give_the_bits_of_steps_that_are_not(model_path: Path) -> None:
    runs = []
    for captured in (False, True):
        runner = ready(sim.make_runner(plan_for(model_path)))
        assert isinstance(runner, CudaRunner)
        if not captured:
            assert runner._steps is not None
            runner._steps._graphs = runner._steps._prompt_graphs = None
        sequences = Sequences(runner, prompts(5, 3))
        sequences.generate(1)
        for which in ([0], [1, 2], [0, 2, 4], [0, 1, 2, 3, 4], [3], [4, 3, 2, 1]):
            sequences.step(which, SamplingParams(temperature=0.9, seed=7, top_p=0.95, logprobs=True, top_logprobs=3))
        runs.append(sequences.drawn)
    assert runs[0] == runs[1]


def test_rows_that_fill_a_batch_up_touch_no_block_of_a_sequence(model_path: Path) -> None:
    """A batch of 3 is computed as one of 4, and one of 5 as it is: what the others hold stays."""
    runner = ready(sim.make_runner(plan_for(model_path)))
    alone, beside = Sequences(runner, prompts(5, 4)), Sequences(runner, prompts(5, 4))
    alone.generate(1)
    kept = [pool.clone() for pool in runner._steps._pool.tensors]  # type: ignore[attr-defined]
    alone.step([0, 1, 2])
    for before, pool in zip(kept, runner._steps._pool.tensors, strict=True):  # type: ignore[attr-defined]
        changed = {int(block) for block in (before != pool).any(1).nonzero()}
        written = {n * BLOCKS + (len(alone.ids[n]) - 2) // 16 for n in (0, 1, 2)}
        assert changed <= {*written, len(pool) - 1}
    beside.generate(2)
    assert [drawn[:2] for drawn in beside.drawn[:3]] == alone.drawn[:3]


def test_what_requests_change_in_logits_reaches_the_device(model_path: Path) -> None:
    runner = ready(sim.make_runner(plan_for(model_path)))
    first = runner.run([SequenceStep([5, 6, 7], 0, (0,), GREEDY)])[0].token_id
    assert first is not None
    allowed = array("I", [0] * 12)
    allowed[3] = 1 << 9
    biased = LogitChanges(biased=array("i", [200]), biases=array("d", [1e4]))
    penalized = LogitChanges(repetition=1.0, penalized=array("i", [first]), penalties=array("d", [1e4]))
    changes = [
        {"masked_ids": [first]},
        {"changes": LogitChanges(allowed=allowed)},
        {"changes": biased},
        {"changes": penalized},
        {"changes": LogitChanges(allowed=array("I"))},
    ]
    for start in (0, 3):  # As a prompt, then as captured steps of the batch.
        steps = [
            SequenceStep([5, 6, 7] if not start else [9], start, (n,), GREEDY, **change)  # type: ignore[arg-type]
            for n, change in enumerate(changes)
        ]
        masked, one, forced, less, none = (sampled.token_id for sampled in runner.run(steps))
        plain = first if not start else runner.run([SequenceStep([9], 3, (0,), GREEDY)])[0].token_id
        assert one == 3 * 32 + 9
        assert forced == 200
        assert none is None
        if not start:
            assert masked != plain
            assert less != plain


def test_many_changes_grow_the_buffers(model_path: Path) -> None:
    """More than the scratch that is there from the start: it grows."""
    runner = ready(sim.make_runner(plan_for(model_path)))
    rng = random.Random(5)
    many = array("i", [rng.randrange(384, 1 << 20) for _ in range(40_000)])
    masked = LogitChanges(biased=many, biases=array("d", [1.0] * len(many)))
    forced = LogitChanges(biased=array("i", [77]), biases=array("d", [1e4]))
    steps = [SequenceStep([5], 0, (n,), GREEDY, changes=change) for n, change in enumerate((masked, forced))]
    plain = runner.run([SequenceStep([5], 0, (0,), GREEDY)])[0].token_id
    assert [sampled.token_id for sampled in runner.run(steps)] == [plain, 77]


def test_prompts_and_tokens_tell_what_the_oracle_tells(model_path: Path) -> None:
    plan = plan_for(model_path)
    ids = [3, 90, 41, 7, 7, 260, 18]
    step = SequenceStep(ids, 0, (0,), GREEDY, prompt_logprobs=PromptIds(0, ids[1:], 2), tensors=True, pooled=2)
    oracle = ready(torch.make_runner(replace(on_cpu(plan), dtype=ComputeDtype.FLOAT32)))
    (expected,), (got,) = oracle.run([step]), ready(sim.make_runner(plan)).run([step])
    assert expected.prompt_logprobs is not None
    assert got.prompt_logprobs is not None
    assert np.allclose(got.prompt_logprobs.logprobs, expected.prompt_logprobs.logprobs, atol=4 * ROUNDING["bfloat16"])
    vectors = [np.frombuffer(sampled.tensors, dtype="<f4") for sampled in (got, expected)]
    assert np.linalg.norm(vectors[0] - vectors[1]) < 0.05 * np.linalg.norm(vectors[1])
    sums = [np.frombuffer(sampled.pooled) for sampled in (got, expected)]
    assert np.linalg.norm(sums[0] - sums[1]) < 0.05 * np.linalg.norm(sums[1])


def test_blocks_go_to_host_memory_and_come_back(model_path: Path) -> None:
    plan = plan_for(model_path, num_host_blocks=4)
    runner = ready(sim.make_runner(plan))
    sequences = Sequences(runner, [list(range(3, 35))])
    sequences.generate(1)
    expected = runner.run([SequenceStep([50], 32, (0, 1, 2), GREEDY)])
    runner.copy_blocks(BlockCopies(to_host=((0, 2), (1, 3))))
    runner._settle((0, 1))  # type: ignore[attr-defined]
    for pool in runner._steps._pool.tensors:  # type: ignore[attr-defined]
        pool[:2] = 255
    runner.copy_blocks(BlockCopies(to_pool=((2, 9), (3, 8))))
    assert runner.run([SequenceStep([50], 32, (9, 8, 7), GREEDY)]) == expected


@pytest.mark.parametrize("mode", KvCacheMode)
def test_all_swapped_out_blocks_leave_before_any_return(model_path: Path, mode: KvCacheMode) -> None:
    """One goes out and comes back elsewhere, and one takes the place of another that leaves."""
    plan = plan_for(model_path, num_host_blocks=3, kv_cache_mode=mode)
    runner = ready(sim.make_runner(plan))
    prompts = [list(range(first, first + 16)) for first in (3, 50, 90)]
    for ids, block in zip(prompts, (1, 2, 3), strict=True):
        runner.run([SequenceStep(ids, 0, (block,))])

    def computed(blocks: tuple[int, ...]) -> list[Sampled]:
        return [runner.run([SequenceStep([7], 16, (block, 0), GREEDY)])[0] for block in blocks]

    before = computed((1, 2, 3))
    assert len({sampled.logprob for sampled in before}) == 3
    runner.copy_blocks(BlockCopies(to_host=[(1, 0)]))
    runner.copy_blocks(BlockCopies(to_host=[(2, 1), (3, 2)], to_pool=[(0, 2), (2, 9)]))
    runner.copy_blocks(BlockCopies(to_pool=[(1, 1)]))
    assert computed((2, 1, 9)) == before


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("dtype", {"dtype": ComputeDtype.FLOAT32}),
        ("weight_quant_group_size", {"weight_quant": WeightQuant.INT8, "weight_quant_group_size": 16}),
        ("block_size", {"block_size": 8}),
        ("device_list", {"device_list": (0, 1)}),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(model_path: Path, field: str, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} = .* the cuda backend") as refusal:
        ready(sim.make_runner(replace(plan_for(model_path), **changes)))  # type: ignore[arg-type]
    assert (refusal.value.reason, refusal.value.violations[0].field) == ("NOT_SUPPORTED", f"config.{field}")


def test_heads_without_a_kernel_are_refused(tmp_path: Path) -> None:
    path = make_tiny_llama(tmp_path)
    with pytest.raises(
        InvalidArgument, match="has heads of 16 entries, which the cuda backend does not support; allowed: 64, 80"
    ):
        ready(sim.make_runner(plan_for(path)))


@pytest.mark.parametrize("quant", [WeightQuant.NONE, WeightQuant.INT8])
def test_a4_rows_beyond_the_tokenizer_are_left_out(tmp_path: Path, quant: WeightQuant) -> None:
    """Also where their number suits no tile; the others have the logits that they had."""
    path, known, drawn = make_tiny_llama(tmp_path, **SHAPE), 301, []
    for vocab_size in (0, known):
        runner = ready(sim.make_runner(plan_for(path, vocab_size=vocab_size, weight_quant=quant)))
        sequences = Sequences(runner, [prompt for seed in range(5) for prompt in prompts(1, seed)])
        sequences.generate(1)
        drawn.append([sampled.token_id or 0 for (sampled,) in sequences.drawn])
        runner.close()
    whole, cut = drawn
    assert all(token_id < known for token_id in cut)
    kept = [(one, other) for one, other in zip(whole, cut, strict=True) if one < known]
    assert len(kept) >= 2
    assert all(one == other for one, other in kept)
