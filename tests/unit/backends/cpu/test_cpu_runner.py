"""The cpu backend as the core uses it: load, size, allocate, run, close, and what it refuses."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from array import array
from random import Random

import pytest
import torch
from headrace_engine.backends.cpu import make_runner
from headrace_engine.backends.torch import make_runner as make_oracle
from headrace_engine.config import (
    ComputeDtype,
    ComputeUnit,
    KvCacheMode,
    WeightQuant,
)
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.warmup import largest_steps
from headrace_engine.environment import ISA_VARIABLE
from headrace_engine.errors import Internal, InvalidArgument
from headrace_engine.model_types import ModelPhase
from headrace_engine.native import allocations, load
from headrace_engine.sampling_params import SamplingParams
from safetensors.torch import load_file, save_file
from support.backends.isa_levels import NAMES
from support.backends.runners import allocated, plan_for
from support.backends.torch_sequences import random_ids
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama

GREEDY = SamplingParams(temperature=0.0, logprobs=True)
KV_BYTES_A_TOKEN = 2 * 2 * 2 * 16 * 4
"""Keys and values, 2 layers, 2 heads of 16 entries, 4 bytes."""


def test_load_tells_its_progress_and_size_its_choices(tiny_llama, memory):
    seen = []
    runner = make_runner(plan_for(tiny_llama, max_batch=4))
    runner.load(lambda phase, done, total: seen.append((phase, done, total)))
    sizes = runner.size()
    assert {phase for phase, _, _ in seen} == {ModelPhase.LOADING}
    assert seen[0][1] == 0
    assert seen[-1][1] == seen[-1][2] > 0
    assert (sizes.dtype, sizes.compute_unit, sizes.num_threads) == (ComputeDtype.FLOAT32, ComputeUnit.CPU, 1)
    assert sizes.devices[0].split()[0] == "CPU"
    assert sizes.devices[0].split()[1] in NAMES
    assert (sizes.max_length, sizes.num_blocks) == (512, 4 * 512 // 16)
    assert sizes.kv_bytes == 4 * 512 * KV_BYTES_A_TOKEN
    weights = 384 * 64 * 2 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 64 * 64 + 3 * 64 * 128)  # 32 outputs take 64.
    tables = 2 * 512 * 8
    assert sizes.weight_bytes == 4 * (weights + tables)
    assert sizes.workspace_bytes > 4 * 2048 * (64 + 64 + 128)
    runner.close()


def test_a_step_returns_tokens_of_the_wanted_rows_in_order(tiny_llama, memory, opened):
    """A prompt chunk, a whole prompt and a decoded token in one step; each as the torch backend draws it."""
    runners = allocated(opened(tiny_llama)), allocated(opened(tiny_llama, make_oracle))
    prompts = [random_ids(20, seed=1), random_ids(9, seed=2), random_ids(5, seed=3)]
    blocks = [[7, 3], (0,), [5]]
    batches = [
        [SequenceStep(prompts[2][:4], 0, blocks[2])],
        [
            SequenceStep(prompts[1], 0, blocks[1], GREEDY),
            SequenceStep(prompts[0][:18], 0, blocks[0]),
            SequenceStep(prompts[2][4:], 4, blocks[2], GREEDY, masked_ids=(1, 2)),
        ],
        [SequenceStep(prompts[0][18:], 18, blocks[0], GREEDY)],
    ]
    for batch in batches:
        mine, expected = (runner.run(batch) for runner in runners)
        assert [drawn.token_id for drawn in mine] == [drawn.token_id for drawn in expected]
        assert [drawn.logprob for drawn in mine] == pytest.approx([one.logprob for one in expected], abs=1e-4)


def test_drawn_tokens_are_the_torch_backends(tiny_llama, memory, opened):
    """Temperatures, cuts, seeds, positions, indices and masked ids, in one batch."""
    runners = allocated(opened(tiny_llama)), allocated(opened(tiny_llama, make_oracle))
    ways = [
        SamplingParams(temperature=1.3, seed=2**64 - 1, logprobs=True),
        SamplingParams(temperature=0.7, top_k=20, seed=7),
        SamplingParams(temperature=2.0, top_p=0.8, min_p=0.01, seed=3, logprobs=True),
        SamplingParams(temperature=1.0, top_k=1),
    ]
    steps = [
        SequenceStep(random_ids(9, seed=n), 0, [n], ways[n % 4], position=n, index=n % 3, masked_ids=(5,) * (n % 2))
        for n in range(32)
    ]
    mine, expected = (runner.run(steps) for runner in runners)
    assert [drawn.token_id for drawn in mine] == [drawn.token_id for drawn in expected]
    assert [drawn.logprob is None for drawn in mine] == [drawn.logprob is None for drawn in expected]


def test_a_seed_draws_the_same_ids_alone_and_in_a_batch(tiny_llama, memory, opened):
    runner = allocated(opened(tiny_llama))
    hot = SamplingParams(temperature=1.2, top_p=0.95, seed=11)
    steps = [SequenceStep(random_ids(12, seed=n), 0, [n], hot, position=n, index=n % 2) for n in range(8)]
    assert runner.run(steps) == [runner.run([step])[0] for step in steps]


def test_where_every_id_is_masked_there_is_no_token(tiny_llama, memory, opened):
    runner = allocated(opened(tiny_llama))
    steps = [
        SequenceStep([1, 2], 0, [0], GREEDY, masked_ids=tuple(range(384))),
        SequenceStep([1, 2], 0, [1], GREEDY),
    ]
    nothing, something = runner.run(steps)
    assert (nothing.token_id, nothing.error) == (None, "")
    assert something.token_id is not None


def test_bc111_non_finite_logits_fail_their_sequence_alone(tmp_path, memory, opened):
    make_tiny_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][5] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    runner = allocated(opened(tmp_path))
    prompts = [[10, 20, 30, 40], [10, 20, 30, 5], [50, 60, 70]]
    steps = [SequenceStep(ids, 0, [n], GREEDY) for n, ids in enumerate(prompts)]
    sampled = runner.run(steps)
    assert (sampled[1].token_id, sampled[1].error) == (None, "logits are not finite")
    assert [sampled[0], sampled[2]] == [runner.run([steps[0]])[0], runner.run([steps[2]])[0]]
    assert None not in (sampled[0].token_id, sampled[2].token_id)


@pytest.mark.parametrize(
    "storage",
    [{}, {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32, "kv_cache_mode": KvCacheMode.UINT4}],
    ids=str,
)
def test_after_warm_up_nothing_is_allocated_any_more(storage, tiny_llama, memory, opened):
    """Neither by the steps that are run to warm up, nor by any mixture of prompts, generations and ways to draw."""
    changes = {"max_batch": 8, "max_prefill_tokens": 64, **storage}
    runner = opened(tiny_llama, **changes)
    sizes = runner.size()
    runner.allocate(sizes.num_blocks)
    before = allocations(load("cpu"))
    for steps in largest_steps(plan_for(tiny_llama, **changes), sizes, 64):
        assert len(runner.run(steps)) == len(steps)
    assert allocations(load("cpu")) == before
    random = Random(3)
    for _ in range(150):
        steps = mixed_steps(random)
        assert len(runner.run(steps)) == sum(step.sampling is not None for step in steps)
    assert allocations(load("cpu")) == before


def mixed_steps(random: Random) -> list[SequenceStep]:
    """Chunks of prompts and single ids of some sequences, of which most want an id."""
    changes = LogitChanges(1.3, array("i", [3, 7]), array("d", [0.5, 1.0]), array("i", [9]), array("d", [2.0]))
    ways = (
        None,
        GREEDY,
        SamplingParams(temperature=0.8, seed=5, top_logprobs=4),
        SamplingParams(temperature=1.1, top_k=40, top_p=0.9, min_p=0.02, logprobs=True),
    )
    return [
        SequenceStep(
            random_ids(random.choice((1, 1, 2, 7)), seed=random.randrange(9)),
            start=random.randrange(40),
            blocks=range(4 * number, 4 * number + 4),
            sampling=random.choice(ways),
            masked_ids=random.choice(((), (1, 2))),
            changes=random.choice((None, changes)),
        )
        for number in range(random.randint(1, 8))
    ]


def test_threads_and_kernels_are_logged(tiny_llama, opened, caplog, monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, "avx2")
    with caplog.at_level(logging.INFO):
        assert opened(tiny_llama, num_threads=3).size().devices == ("CPU avx2",)
    assert "cpu_threads: 3, unpinned (num_threads = 3), avx2" in caplog.text


def test_an_instruction_set_that_is_none_is_refused(tiny_llama, opened, monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, "sse9")
    with pytest.raises(InvalidArgument, match='HEADRACE_ISA = "sse9"'):
        opened(tiny_llama)


def test_an_empty_step_does_nothing(tiny_llama, memory, opened):
    assert allocated(opened(tiny_llama)).run([]) == []


def test_running_before_allocating_is_a_defect(tiny_llama):
    with pytest.raises(Internal):
        make_runner(plan_for(tiny_llama)).run([])


def test_close_frees_the_model_and_may_be_repeated(tiny_llama, memory, opened):
    runner = allocated(opened(tiny_llama))
    runner.close()
    runner.close()
    with pytest.raises(Internal):
        runner.run([])


def test_this_backend_needs_no_torch(tiny_llama, tmp_path):
    """Nor anything else that is not there on a bare machine, also for blocks of a GGUF."""
    program = """
import sys
for name in ("torch", "transformers", "safetensors", "gguf", "tokenizers", "grpc", "google", "headrace"):
    sys.modules[name] = None
from headrace_engine.backends.cpu import make_runner
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.config import ModelFormat
from headrace_engine.core.runner import SequenceStep
from headrace_engine.sampling_params import SamplingParams
for path in sys.argv[1:]:
    runner = make_runner(CorePlan(path=path, format=ModelFormat.AUTO, num_threads=1, max_batch=1))
    runner.load(lambda *_: None)
    runner.allocate(runner.size().num_blocks)
    print(runner.run([SequenceStep([1, 2, 3], 0, [0], SamplingParams(temperature=0))])[0].token_id)
    runner.close()
"""
    blocks = make_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama, "Q4_1")
    command = [sys.executable, "-c", program, str(tiny_llama), str(blocks)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert len(lines) == 2
    assert all(0 <= int(line) < 384 for line in lines)


def test_a2_another_thread_sees_progress_inside_a_step(tiny_llama, opened):
    """Jobs are counted when they are done, not when the step is."""
    runner = allocated(opened(tiny_llama, max_prefill_tokens=400))
    steps = [SequenceStep(tuple(random_ids(400, seed=1)), 0, tuple(range(25)), GREEDY)]
    seen, ended = set(), threading.Event()

    def watch():
        while not ended.is_set():
            seen.add(runner.progress)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(1000):
            before = runner.progress
            runner.run(steps)
            after = runner.progress
            assert after > before
            if any(before < value < after for value in seen):
                break
    finally:
        ended.set()
        watcher.join()
    assert any(before < value < after for value in seen)
