"""Blocks that leave the pool and come back, on each backend that has host blocks, in every mode of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.backends.torch import host_blocks
from headrace_engine.config import ComputeDtype, KvCacheMode
from headrace_engine.core.runner import BlockCopies, Runner, Sampled, SequenceStep
from headrace_engine.errors import Internal, OutOfMemory
from headrace_engine.native import allocations, load
from headrace_engine.process.run import make_runner
from headrace_engine.sampling_params import SamplingParams
from support.backends.runners import allocated, plan_for, silent
from support.backends.torch_sequences import random_ids

GREEDY = SamplingParams(temperature=0.0, logprobs=True, top_logprobs=5)
BLOCK_BYTES = 16 * 2 * 2 * 2 * 16 * 4
"""16 tokens, keys and values, 2 layers, 2 heads of 16 entries, 4 bytes."""
Open = Callable[..., Runner]


@pytest.fixture(params=["cpu", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(tiny_llama: Path, backend: str, memory: Callable[[int], None]) -> Iterator[Open]:
    """Opens runners with 12 blocks; closed in the end."""
    runners = []

    def open_one(**changes: Any) -> Runner:
        sizes = {"backend": backend, "max_length": 64, "max_batch": 2, "num_blocks": 12}
        runners.append(make_runner(plan_for(tiny_llama, **{**sizes, **changes})))
        runners[-1].load(silent)
        return runners[-1]

    yield open_one
    for runner in runners:
        runner.close()


def fill(runner: Runner, ids: list[int], blocks: list[int]) -> None:
    """Compute ids into blocks."""
    runner.run([SequenceStep(ids, 0, blocks)])


def computed(runner: Runner, ids: list[int], blocks: list[int]) -> Sampled:
    """What comes after ids of which all but the last are in the blocks."""
    [drawn] = runner.run([SequenceStep(ids[-1:], len(ids) - 1, blocks, GREEDY)])
    return drawn


@pytest.mark.parametrize("mode", KvCacheMode)
@pytest.mark.parametrize("dtype", [ComputeDtype.FLOAT32, ComputeDtype.BFLOAT16])
def test_what_left_the_pool_comes_back_bit_for_bit(opened: Open, mode: KvCacheMode, dtype: ComputeDtype) -> None:
    """Into other blocks, after theirs were overwritten."""
    runner = allocated(opened(kv_cache_mode=mode, dtype=dtype, num_host_blocks=5))
    ids, others = random_ids(33, seed=1), random_ids(32, seed=2)
    fill(runner, ids[:32], [3, 7])
    before = computed(runner, ids, [3, 7, 0])
    runner.copy_blocks(BlockCopies(to_host=[(7, 0), (3, 4)]))
    fill(runner, others, [3, 7])
    assert computed(runner, ids, [3, 7, 0]) != before
    runner.copy_blocks(BlockCopies(to_pool=[(0, 3), (4, 11)]))
    assert computed(runner, ids, [11, 3, 0]) == before


def test_all_that_leaves_does_so_before_anything_comes_back(opened: Open) -> None:
    """Two prefixes change places, one block goes out and comes back elsewhere: each still reads as it did."""
    runner = allocated(opened(num_host_blocks=3))
    prompts = [random_ids(17, seed=seed) for seed in range(3)]
    for ids, block in zip(prompts, (1, 2, 3), strict=True):
        fill(runner, ids[:16], [block])
    before = [computed(runner, ids, [block, 0]) for ids, block in zip(prompts, (1, 2, 3), strict=True)]
    runner.copy_blocks(BlockCopies(to_host=[(1, 0)]))
    runner.copy_blocks(BlockCopies(to_host=[(2, 1), (3, 2)], to_pool=[(0, 2), (2, 9)]))
    runner.copy_blocks(BlockCopies(to_pool=[(1, 1)]))
    assert [computed(runner, ids, [block, 0]) for ids, block in zip(prompts, (2, 1, 9), strict=True)] == before


@pytest.mark.parametrize("mode", KvCacheMode)
def test_blocks_are_copied_within_the_pool_one_after_the_other(opened: Open, mode: KvCacheMode) -> None:
    """Without a host tier, and a copy of a copy."""
    runner = allocated(opened(kv_cache_mode=mode))
    ids = random_ids(33, seed=1)
    fill(runner, ids[:32], [3, 7])
    before = computed(runner, ids, [3, 7, 0])
    runner.copy_blocks(BlockCopies(within=[(3, 5), (7, 9), (9, 2)]))
    fill(runner, random_ids(48, seed=2), [3, 7, 9])
    assert computed(runner, ids, [5, 2, 0]) == before


def test_blocks_leave_before_others_are_copied_over_them(opened: Open) -> None:
    runner = allocated(opened(num_host_blocks=1))
    prompts = [random_ids(17, seed=seed) for seed in range(2)]
    for ids, block in zip(prompts, (1, 2), strict=True):
        fill(runner, ids[:16], [block])
    before = [computed(runner, ids, [block, 0]) for ids, block in zip(prompts, (1, 2), strict=True)]
    runner.copy_blocks(BlockCopies(to_host=[(2, 0)], within=[(1, 2)], to_pool=[(0, 1)]))
    assert [computed(runner, ids, [block, 0]) for ids, block in zip(prompts, (2, 1), strict=True)] == before


def test_any_number_of_blocks_is_copied_in_the_room_there_is(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_blocks, "_STAGED", {"cpu": 2 * BLOCK_BYTES})
    runner = allocated(opened(num_host_blocks=7, dtype=ComputeDtype.FLOAT32))
    ids = random_ids(50, seed=1)
    fill(runner, ids[:48], [2, 5, 8])
    before = computed(runner, ids, [2, 5, 8, 0])
    runner.copy_blocks(BlockCopies(to_host=[(block, block - 2) for block in (2, 3, 5, 7, 8)]))
    fill(runner, random_ids(48, seed=2), [2, 5, 8])
    runner.copy_blocks(BlockCopies(to_pool=[(0, 10), (3, 9), (6, 11), (1, 4), (5, 6)]))
    assert computed(runner, ids, [10, 9, 11, 0]) == before


def test_nothing_is_allocated_while_blocks_are_copied(opened: Open, backend: str) -> None:
    if backend != "cpu":
        pytest.skip("counted by core_cpu")
    native = load("cpu")
    runner = allocated(opened(num_host_blocks=4))
    count = allocations(native)
    for _ in range(3):
        runner.copy_blocks(BlockCopies(to_host=[(1, 2), (4, 3)], to_pool=[(2, 5)]))
    assert allocations(native) == count


def test_the_tier_counts_in_what_the_model_takes(opened: Open, backend: str, memory: Callable[[int], None]) -> None:
    """On a CPU both pools share one memory: what the tier takes the pool cannot have."""
    memory(64 * 2**20)
    changes = {"memory_ratio": 1.0, "num_blocks": 0, "dtype": ComputeDtype.FLOAT32, "max_prefill_tokens": 64}
    without, with_tier = opened(**changes).size(), opened(**changes, num_host_blocks=100).size()
    assert (without.num_host_blocks, without.host_kv_bytes) == (0, 0)
    assert (with_tier.num_host_blocks, with_tier.host_kv_bytes) == (100, 100 * BLOCK_BYTES)
    staged = with_tier.workspace_bytes - without.workspace_bytes
    assert staged == (0 if backend == "cpu" else 100 * BLOCK_BYTES)
    assert without.num_blocks - with_tier.num_blocks == 100 + staged // BLOCK_BYTES


def test_a_tier_that_does_not_fit_is_refused_with_the_numbers(opened: Open, memory: Callable[[int], None]) -> None:
    memory(64 * 2**20)
    with pytest.raises(OutOfMemory) as caught:
        opened(num_host_blocks=100_000, max_prefill_tokens=64, dtype=ComputeDtype.FLOAT32).size()
    message = caught.value.message
    assert message.startswith("num_host_blocks 100000 × block_size 16 needs 781.2 MiB of host memory, ")
    fits = int(message.rpartition("lower num_host_blocks to ")[2].split()[0])
    assert 0 < fits * BLOCK_BYTES < 64 * 2**20


def test_copies_without_a_tier_are_a_defect(opened: Open) -> None:
    with pytest.raises(Internal, match="without host blocks"):
        allocated(opened()).copy_blocks(BlockCopies([(0, 0)]))
