"""The size of the KV pool, and the messages when it does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.backends.kv_size import CPU_SHARE, Memory, amount, length_limit, positions_that_fit, size_pool
from headrace_engine.config import KvCacheMode, ModelFormat
from headrace_engine.errors import InvalidArgument, OutOfMemory
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.spec import DecoderSpec, LayerSpec, RopeSpec

MIB = 2**20
SPEC = DecoderSpec("llama", 100, 64, 4, 2, 16, 128, 1e-5, (RopeSpec(1e4, 16),), (LayerSpec(),) * 2, max_length=2048)
PLAN = CorePlan(path="m", format=ModelFormat.HF, max_batch=4, max_length=1024, block_size=16)
MEMORY = Memory(total=400 * MIB, weights=100 * MIB, workspace=20 * MIB, free=280 * MIB)


def size(plan=PLAN, memory=MEMORY, block=MIB, ratio=None):
    return size_pool(plan, SPEC, memory, block, ratio)


def test_a_cpu_pool_holds_max_batch_sequences_if_it_can():
    pool = size(block=1024)
    assert (pool.num_blocks, pool.max_length, pool.bytes) == (4 * 64, 1024, 4 * 64 * 1024)


def test_a_cpu_pool_takes_at_most_a_quarter_of_the_limit():
    assert size().num_blocks == 100


def test_a_cpu_pool_takes_no_more_than_is_left():
    assert size(memory=replace(MEMORY, free=70 * MIB)).num_blocks == 70


def test_a_ratio_covers_weights_workspace_and_pool():
    assert size(ratio=0.5).num_blocks == 200 - 120


def test_a_ratio_cannot_take_what_others_hold():
    assert size(ratio=0.9, memory=replace(MEMORY, free=90 * MIB)).num_blocks == 90


def test_num_blocks_is_taken_as_given():
    pool = size(replace(PLAN, num_blocks=64), ratio=0.1)
    assert (pool.num_blocks, pool.max_length) == (64, 1024)


def test_without_max_length_the_models_own_holds_if_it_fits():
    assert size(replace(PLAN, max_length=0), block=1024).max_length == 2048
    pool = size(replace(PLAN, max_length=0))
    assert (pool.num_blocks, pool.max_length) == (100, 1600)


def test_a_length_off_the_block_size_gets_one_block_more():
    assert size(replace(PLAN, max_length=17, max_batch=1)).num_blocks == 2


def test_one_sequence_must_fit_or_the_message_says_what_to_lower():
    with pytest.raises(OutOfMemory) as failure:
        size(memory=replace(MEMORY, free=40 * MIB))
    assert failure.value.message == (
        "max_length 1024 needs 64.0 MiB of KV cache for one sequence, 40.0 MiB are free (of 400.0 MiB; weights take "
        "100.0 MiB, workspace 20.0 MiB): lower max_length to 640, or raise memory_ratio"
    )
    assert size(replace(PLAN, max_length=640), memory=replace(MEMORY, free=40 * MIB)).max_length == 640


@pytest.mark.parametrize("max_length", [0, 1024])
def test_a_ratio_that_leaves_nothing_is_refused(max_length):
    with pytest.raises(OutOfMemory, match="0 bytes are free"):
        size(replace(PLAN, max_length=max_length), ratio=0.3)


def test_num_blocks_below_one_max_length_is_refused():
    with pytest.raises(OutOfMemory) as failure:
        size(replace(PLAN, num_blocks=4))
    assert failure.value.message == (
        "num_blocks 4 × block_size 16 holds 64 tokens, max_length is 1024: raise num_blocks to 64 or lower "
        "max_length to 64"
    )


def test_num_blocks_that_exceed_memory_are_refused():
    with pytest.raises(
        OutOfMemory, match=r"needs 300\.0 MiB of KV cache, 280\.0 MiB are free: lower num_blocks to 280"
    ):
        size(replace(PLAN, num_blocks=300))


def test_a_max_length_beyond_the_models_is_refused():
    assert length_limit(replace(PLAN, max_length=2048), SPEC) == 2048
    with pytest.raises(InvalidArgument, match="= 2049 exceeds the 2048 positions") as failure:
        length_limit(replace(PLAN, max_length=2049), SPEC)
    assert [violation.field for violation in failure.value.violations] == ["config.max_length"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(12_025_908_429, "11.2 GiB"), (MIB, "1.0 MiB"), (1536, "1.5 KiB"), (7, "7 bytes"), (-5, "0 bytes")],
)
def test_amounts_are_written_for_people(size, text):
    assert amount(size) == text


@pytest.mark.parametrize("mode", KvCacheMode)
@pytest.mark.parametrize("changes", [{}, {"num_blocks": 64}, {"memory_ratio": 0.9}, {"memory_ratio": 0.01}])
@pytest.mark.parametrize("length", [100, 10**6, 2**31 - 1])
def test_f5_tables_for_every_position_fit_and_cover_the_pool(length, changes, mode):
    spec, plan = replace(SPEC, max_length=length), replace(PLAN, max_length=0, kv_cache_mode=mode, **changes)
    total, token = 400 * MIB, int(2 * SPEC.num_layers * SPEC.kv_width * LEAST[mode])
    positions = positions_that_fit(plan, spec, total, CPU_SHARE)
    assert positions * 4 * SPEC.rotary_dim < total
    memory = Memory(total=total, weights=0, workspace=0, free=total - positions * 4 * SPEC.rotary_dim)
    pool = size_pool(plan, spec, memory, token * plan.block_size, plan.memory_ratio)
    assert pool.max_length <= positions


LEAST = {KvCacheMode.DEFAULT: 2, KvCacheMode.INT8: 1, KvCacheMode.UINT4: 0.5}
