"""Ranks that share a model: what they compute beside one device, and what each holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.backends import torch as torch_backend
from headrace_engine.backends.torch import make_runner
from headrace_engine.backends.torch.parallel.share import Share
from headrace_engine.config import ComputeDtype, KvCacheMode, TensorParallelMode
from support.backends import ranks as rank_runs
from support.backends.rank_cases import MODELS, REDUCED, steps_of
from support.backends.ranks import Ranks, assert_likely, assert_rounded, copied_and_not
from support.backends.runners import plan_for, ready
from support.backends.torch_sequences import random_ids
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama

one_device, on_ranks = partial(rank_runs.one_device, torch_backend), partial(rank_runs.on_ranks, torch_backend)


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_compute_the_bits_of_one_device(name: str, tmp_path: Path, memory: Any) -> None:
    make, settings = MODELS[name]
    path = make(tmp_path / "model", **settings)
    steps = steps_of(random_ids(46, 1))
    assert on_ranks(path, steps, 2) == one_device(path, steps)


@pytest.mark.parametrize("mode", [KvCacheMode.INT8, KvCacheMode.UINT4])
def test_quantized_keys_and_values_are_those_of_one_device(mode: KvCacheMode, tiny_llama: Path, memory: Any) -> None:
    steps = steps_of(random_ids(46, 2))
    assert on_ranks(tiny_llama, steps, 2, kv_cache_mode=mode) == one_device(tiny_llama, steps, kv_cache_mode=mode)


def test_four_ranks_share_a_gguf_with_interleaved_heads(tmp_path: Path, memory: Any) -> None:
    source = make_tiny_llama(tmp_path / "source", num_attention_heads=8, num_key_value_heads=4, intermediate_size=256)
    path = make_tiny_gguf(tmp_path / "model.gguf", source, "Q8_0")
    steps = steps_of(random_ids(46, 3))
    assert on_ranks(path, steps, 4) == one_device(path, steps)


@pytest.mark.parametrize("name", REDUCED)
def test_reduced_ranks_differ_by_rounding_alone(name: str, tmp_path: Path, memory: Any) -> None:
    make, settings = MODELS[name]
    path = make(tmp_path / "model", **settings)
    steps = steps_of(random_ids(46, 4))
    found = on_ranks(path, steps, 2, tensor_parallel_mode=TensorParallelMode.REDUCED)
    assert_rounded(found, one_device(path, steps))


def test_copied_blocks_hold_the_heads_of_all_ranks(tiny_llama: Path, memory: Any) -> None:
    """A prompt's block goes to the host tier and comes back elsewhere: the next token is the same."""
    found, expected = copied_and_not(torch_backend, tiny_llama, random_ids(17, 5))
    assert found == expected


def test_each_rank_holds_its_share(tiny_llama: Path, memory: Any) -> None:
    """Half of all matrices and heads; norms and the tables of positions whole."""
    whole = ready(make_runner(plan_for(tiny_llama, max_batch=4)))
    with Ranks(plan_for(tiny_llama, max_batch=4, tensor_parallel=2)) as ranks:
        one = whole.size()
        norms, tables = 4 * 64 * 5, 4 * 2 * 512 * 8
        for sizes in ranks.sizes:
            assert sizes.weight_bytes - norms - tables == (one.weight_bytes - norms - tables) // 2
            assert (sizes.num_blocks, sizes.kv_bytes) == (one.num_blocks, one.kv_bytes // 2)
    whole.close()


def test_16_bit_weights_are_shared_too(tiny_llama: Path, memory: Any) -> None:
    steps = steps_of(random_ids(46, 6))
    found = on_ranks(tiny_llama, steps, 2, dtype=ComputeDtype.BFLOAT16)
    assert_likely(found, one_device(tiny_llama, steps, dtype=ComputeDtype.BFLOAT16), 0.1)


@pytest.mark.parametrize(("total", "ranks", "width"), [(128, 2, 64), (96, 2, 64), (48, 2, 24), (384, 4, 96), (5, 2, 3)])
def test_parts_are_cut_by_units_where_they_are_wide(total: int, ranks: int, width: int) -> None:
    assert Share(0, ranks, TensorParallelMode.EXACT).width(total) == width
