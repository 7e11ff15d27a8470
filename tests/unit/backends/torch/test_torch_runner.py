"""The torch backend as the core uses it: load, size, allocate, run, close, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from headrace_engine.backends import host
from headrace_engine.backends.torch import make_runner
from headrace_engine.backends.torch.runner import run_steps
from headrace_engine.backends.torch.workspace import largest_step, workspace_bytes
from headrace_engine.config import ComputeDtype, ComputeUnit, KvCacheMode, RopeScaling, RopeScalingType, WeightQuant
from headrace_engine.core.runner import SequenceStep
from headrace_engine.errors import Internal, InvalidArgument, OutOfMemory
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.decoder import Interrupted
from headrace_engine.sampling_params import SamplingParams
from support.backends.runners import plan_for, ready, silent
from support.backends.torch_sequences import Lanes, load, random_ids
from support.models.tiny_models import make_tiny_llama

GREEDY = SamplingParams(temperature=0.0, logprobs=True)
MIB = 2**20
KV_BYTES_A_TOKEN = 2 * 2 * 2 * 16 * 4
"""Keys and values, 2 layers, 2 heads of 16 entries, 4 bytes."""


def runner_for(path, **changes):
    return ready(make_runner(plan_for(path, **changes)))


def refusal(path, **changes):
    with pytest.raises(InvalidArgument) as failure:
        make_runner(plan_for(path, **changes)).load(silent)
    return failure.value


def test_load_tells_its_progress_and_size_its_choices(tiny_llama, memory):
    seen = []
    runner = make_runner(plan_for(tiny_llama, max_batch=4))
    runner.load(lambda phase, done, total: seen.append((phase, done, total)))
    sizes = runner.size()
    assert {phase for phase, _, _ in seen} == {ModelPhase.LOADING}
    assert seen[-1][1] == seen[-1][2] > 0
    assert (sizes.devices, sizes.dtype, sizes.compute_unit) == (("cpu",), ComputeDtype.FLOAT32, ComputeUnit.CPU)
    assert (sizes.num_threads, torch.get_num_threads()) == (1, 1)
    assert (sizes.max_length, sizes.num_blocks) == (512, 4 * 512 // 16)
    assert sizes.kv_bytes == 4 * 512 * KV_BYTES_A_TOKEN
    weights = 384 * 64 * 2 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    tables = 2 * 512 * 8
    assert sizes.weight_bytes == 4 * (weights + tables)
    assert sizes.workspace_bytes > 0


@pytest.mark.parametrize(
    ("mode", "dtype", "nbytes"),
    [
        (KvCacheMode.DEFAULT, ComputeDtype.BFLOAT16, KV_BYTES_A_TOKEN // 2),
        (KvCacheMode.INT8, ComputeDtype.BFLOAT16, 2 * 2 * 2 * (16 + 8)),
        (KvCacheMode.UINT4, ComputeDtype.FLOAT32, 2 * 2 * 2 * (8 + 8)),
    ],
)
def test_keys_and_values_take_what_their_mode_says(mode, dtype, nbytes, tiny_llama, memory):
    """Codes have a step and a lowest value beside them for each token and head."""
    runner = make_runner(plan_for(tiny_llama, max_batch=4, kv_cache_mode=mode, dtype=dtype))
    runner.load(silent)
    assert runner.size().kv_bytes == 4 * 512 * nbytes
    pool = load(tiny_llama, kv_cache_mode=mode, dtype=dtype).pool(4 * 512 // 16, 16)
    assert sum(tensor.nbytes for tensor in pool.tensors) == runner.size().kv_bytes


def test_without_num_threads_the_cores_of_the_host_are_used(tiny_llama, memory):
    runner = make_runner(plan_for(tiny_llama, num_threads=0))
    runner.load(silent)
    assert runner.size().num_threads == host.compute_threads()


def test_a_step_returns_tokens_of_the_wanted_rows_in_order(tiny_llama, memory):
    """A prompt chunk, a whole prompt and a decoded token in one step; each as computed alone by the decoder."""
    runner = runner_for(tiny_llama)
    prompts = [random_ids(20, seed=1), random_ids(9, seed=2), random_ids(5, seed=3)]
    blocks = [[7, 3], [0], [5]]
    assert runner.run([SequenceStep(prompts[2][:4], 0, blocks[2])]) == []
    sampled = runner.run(
        [
            SequenceStep(prompts[1], 0, blocks[1], GREEDY),
            SequenceStep(prompts[0][:18], 0, blocks[0]),
            SequenceStep(prompts[2][4:], 4, blocks[2], GREEDY, masked_ids=(1, 2)),
        ]
    )
    sampled += runner.run([SequenceStep(prompts[0][18:], 18, blocks[0], GREEDY)])
    lanes = Lanes(load(tiny_llama))
    for prompt, got, masked in zip((prompts[1], prompts[2], prompts[0]), sampled, ([], [1, 2], []), strict=True):
        lane = lanes.add(prompt)
        lanes.step((lane, len(prompt)))
        logits = lane.scores[0].double()
        logprobs = logits.log_softmax(0)
        logits[masked] = -torch.inf
        assert got.token_id == int(logits.argmax())
        assert got.logprob == pytest.approx(logprobs[got.token_id].item(), abs=1e-9)
    runner.close()


def test_a_seed_draws_the_same_ids_alone_and_in_a_batch(tiny_llama, memory):
    runner = runner_for(tiny_llama)
    hot = SamplingParams(temperature=1.2, top_p=0.95, seed=11)
    steps = [SequenceStep(random_ids(12, seed=n), 0, [n], hot, position=n, index=n % 2) for n in range(8)]
    assert runner.run(steps) == [runner.run([step])[0] for step in steps]


def overflowing_llama(path):
    """A model in which id 5 drives one entry of the MLP beyond what float16 holds, and the other ids do not."""
    from safetensors.torch import load_file, save_file

    make_tiny_llama(path)
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][:, 3] = 0
    weights["model.embed_tokens.weight"][5] = 0
    weights["model.embed_tokens.weight"][5, 3] = 1000
    for name in ("gate", "up"):
        weights[f"model.layers.0.mlp.{name}_proj.weight"][0] = 0
        weights[f"model.layers.0.mlp.{name}_proj.weight"][0, 3] = 100
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_bc111_overflow_in_one_sequence_is_its_error_alone(tmp_path, memory):
    runner = runner_for(overflowing_llama(tmp_path), dtype=ComputeDtype.FLOAT16)
    prompts = [[10, 20, 30, 40], [10, 20, 30, 5], [50, 60, 70]]
    steps = [SequenceStep(ids, 0, [n], GREEDY) for n, ids in enumerate(prompts)]
    alone = [runner.run([step])[0] for step in steps]
    sampled = runner.run(steps)
    assert sampled[1].token_id is None
    assert sampled[1].error == "logits are not finite"
    assert [sampled[0].token_id, sampled[2].token_id] == [alone[0].token_id, alone[2].token_id]
    assert [sampled[0].error, sampled[2].error] == ["", ""]
    assert None not in (alone[0].token_id, alone[2].token_id)


def test_bc111_what_overflows_float16_is_right_in_bfloat16(tmp_path, memory):
    runner = runner_for(overflowing_llama(tmp_path), dtype=ComputeDtype.BFLOAT16)
    assert runner.run([SequenceStep([10, 20, 30, 5], 0, [0], GREEDY)])[0].error == ""


def test_bc204_without_a_cuda_device_cuda_is_refused(tiny_llama, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    failure = refusal(tiny_llama, compute_unit=ComputeUnit.CUDA)
    assert failure.violations[0].field == "config.compute_unit"
    assert "there is no CUDA device" in failure.message


def test_without_a_compute_unit_cpu_is_used_if_there_is_no_cuda(tiny_llama, monkeypatch, memory):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runner = make_runner(plan_for(tiny_llama, compute_unit=None))
    runner.load(silent)
    assert runner.size().compute_unit is ComputeUnit.CPU


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"compute_unit": ComputeUnit.CPU_NUMA}, "config.compute_unit", "NOT_SUPPORTED"),
        ({"device_list": (0, 1)}, "config.device_list", "NOT_SUPPORTED"),
        ({"device_list": (1,)}, "config.device_list", "INVALID_FIELD"),
        ({"weight_quant": WeightQuant.INT8}, "config.weight_quant", "NOT_SUPPORTED"),
        ({"max_length": 513}, "config.max_length", "INVALID_FIELD"),
    ],
    ids=str,
)
def test_what_is_not_honoured_is_refused_by_name(changes, field, reason, tiny_llama):
    failure = refusal(tiny_llama, **changes)
    assert (failure.violations[0].field, failure.reason) == (field, reason)


def test_a_caller_may_stretch_the_length_with_rope_scaling(tiny_llama, memory):
    runner = make_runner(plan_for(tiny_llama, max_length=1024, rope_scaling=RopeScaling(RopeScalingType.LINEAR, 2.0)))
    runner.load(silent)
    assert runner.size().max_length == 1024


def test_a_cpu_pool_takes_a_quarter_of_the_memory_limit(tiny_llama, memory):
    runner = make_runner(plan_for(tiny_llama, max_batch=4096))
    runner.load(silent)
    memory(400 * MIB)
    assert runner.size().kv_bytes == pytest.approx(100 * MIB, abs=16 * KV_BYTES_A_TOKEN)


@pytest.mark.parametrize("how", ["plan", "environment"])
def test_a_memory_ratio_replaces_the_quarter(how, tiny_llama, memory, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("BFC_MEM_RATIO", "0.5")
    runner = make_runner(plan_for(tiny_llama, memory_ratio=0.5 if how == "plan" else None))
    runner.load(silent)
    sizes = runner.size()
    taken = sizes.weight_bytes + sizes.workspace_bytes + sizes.kv_bytes
    assert taken == pytest.approx(512 * MIB, abs=16 * KV_BYTES_A_TOKEN)


def test_a_length_that_does_not_fit_is_out_of_memory(tiny_llama, memory):
    runner = make_runner(plan_for(tiny_llama, max_length=512, max_batch=1, max_prefill_tokens=16))
    runner.load(silent)
    memory(runner.size().weight_bytes + runner.size().workspace_bytes + MIB // 8)
    with pytest.raises(OutOfMemory, match=r"max_length 512 needs 256\.0 KiB of KV cache .* lower max_length to 256"):
        runner.size()


def test_weights_above_the_limit_are_refused_before_reading(tiny_llama, memory):
    memory(MIB // 8)
    seen = []
    with pytest.raises(OutOfMemory, match="weights in FLOAT32 do not fit"):
        make_runner(plan_for(tiny_llama)).load(lambda *progress: seen.append(progress))
    assert seen == []


def test_the_largest_step_is_full_and_runs_in_one_block(tiny_llama):
    plan = plan_for(tiny_llama, max_batch=3, max_prefill_tokens=40)
    model = load(tiny_llama)
    steps = largest_step(plan, max_length=512)
    assert sum(len(step.token_ids) for step in steps) == 40
    assert all(step.start + len(step.token_ids) == 512 for step in steps)
    assert len(run_steps(model.decoder(model.pool(1, plan.block_size)), steps)) == 3


@pytest.mark.parametrize("mode", KvCacheMode)
def test_the_bound_of_the_workspace_holds(mode, tiny_llama):
    """Peak of live tensors over the largest step, as torch's profiler counts every allocation and release."""
    plan = plan_for(tiny_llama, max_batch=4, max_prefill_tokens=256)
    model = load(tiny_llama, kv_cache_mode=mode)
    decoder, steps = model.decoder(model.pool(1, plan.block_size)), largest_step(plan, max_length=512)
    peak = _peak_bytes(lambda: run_steps(decoder, steps))
    assert peak <= workspace_bytes(model.spec, plan, itemsize=4) <= 8 * peak


def _peak_bytes(call):
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def test_an_empty_step_does_nothing(tiny_llama, memory):
    assert runner_for(tiny_llama).run([]) == []


def test_running_before_allocating_is_a_defect(tiny_llama):
    with pytest.raises(Internal):
        make_runner(plan_for(tiny_llama)).run([])


def test_close_frees_the_model_and_may_be_repeated(tiny_llama, memory):
    runner = runner_for(tiny_llama)
    runner.close()
    runner.close()
    with pytest.raises(Internal):
        runner.run([])


@pytest.mark.parametrize(("asked", "found"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_compute_threads_sleep_while_waiting_by_default(asked, found):
    """As the OpenMP runtime itself reports its settings when torch is loaded."""
    program = "import headrace_engine.backends.torch, torch; torch.ones(9)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "OMP_DISPLAY_ENV": "TRUE", **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"OMP_WAIT_POLICY = '{found}'" in result.stderr


def test_a2_progress_is_counted_in_a_step_that_can_be_cut(tiny_llama):
    """At its next product: a thread that nobody listens to any more computes on for no longer."""
    runner = runner_for(tiny_llama)
    step = SequenceStep(token_ids=(1, 2, 3), start=0, blocks=(0,), sampling=GREEDY)
    before = runner.progress
    runner.run([step])
    counted = runner.progress - before
    assert counted == 5 * 2 + 1
    runner.interrupt()
    with pytest.raises(Interrupted):
        runner.run([step])
    assert runner.progress == before + counted + 1
