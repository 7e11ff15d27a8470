"""Ranks that share a model on the cpu backend: they compute the bits of one device, or nearly, in every storage."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.backends import cpu
from headrace_engine.backends.cpu import make_rank, make_runner
from headrace_engine.backends.cpu.parallel.share import CpuShare
from headrace_engine.config import ActivationQuant, ComputeDtype, KvCacheMode, TensorParallelMode, WeightQuant
from headrace_engine.errors import Internal, InvalidArgument
from support.backends import ranks as rank_runs
from support.backends.rank_cases import MODELS, REDUCED, steps_of
from support.backends.ranks import Ranks, assert_likely, assert_rounded, copied_and_not
from support.backends.runners import plan_for, ready, silent
from support.backends.torch_sequences import random_ids
from support.models.tiny_models import make_tiny_family, make_tiny_gguf, make_tiny_llama

INT8 = {"weight_quant": WeightQuant.INT8}
INT4 = {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32}
BYTES = {"activation_quant": ActivationQuant.INT8}
STORAGES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": ComputeDtype.BFLOAT16},
    "float16": {"dtype": ComputeDtype.FLOAT16},
    "int8": INT8,
    "int4": INT4,
    "int8, bytes": {**INT8, **BYTES},
    "int4, bytes": {**INT4, **BYTES},
    "keys in int8": {"kv_cache_mode": KvCacheMode.INT8},
    "keys in uint4": {"kv_cache_mode": KvCacheMode.UINT4},
}
LATENT = {"name": "deepseek2", "moe_intermediate_size": 64}
MIXTURE = {"name": "qwen2 moe", "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128}


ADDED = {"tensor_parallel_mode": TensorParallelMode.REDUCED}
one_device, on_ranks = partial(rank_runs.one_device, cpu), partial(rank_runs.on_ranks, cpu)


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_compute_the_bits_of_one_device(name: str, tmp_path: Path, memory: Any) -> None:
    make, settings = MODELS[name]
    path = make(tmp_path / "model", **settings)
    steps = steps_of(random_ids(46, 1))
    assert on_ranks(path, steps, 2) == one_device(path, steps)


@pytest.mark.parametrize("name", STORAGES)
def test_every_storage_has_the_bits_of_one_device(name: str, tiny_llama: Path, memory: Any) -> None:
    steps, storage = steps_of(random_ids(46, 2)), STORAGES[name]
    assert on_ranks(tiny_llama, steps, 2, **storage) == one_device(tiny_llama, steps, **storage)


@pytest.mark.parametrize("model", [MIXTURE, LATENT], ids=["experts", "latents"])
@pytest.mark.parametrize("name", ["bfloat16", "int8", "int4", "int4, bytes"])
def test_experts_have_the_bits_of_one_device(name: str, model: dict[str, Any], tmp_path: Path, memory: Any) -> None:
    path = make_tiny_family(tmp_path / "model", **model)
    steps, storage = steps_of(random_ids(46, 3)), STORAGES[name]
    assert on_ranks(path, steps, 2, **storage) == one_device(path, steps, **storage)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_1", "Q4_0"])
def test_four_ranks_share_blocks_of_a_gguf(quant: str, tmp_path: Path, memory: Any) -> None:
    """Its heads are interleaved, and all ranks but the first hold part of one of its tiles."""
    source = make_tiny_llama(tmp_path / "source", num_attention_heads=8, num_key_value_heads=4, intermediate_size=256)
    path = make_tiny_gguf(tmp_path / "model.gguf", source, quant)
    steps = steps_of(random_ids(46, 4))
    assert on_ranks(path, steps, 4) == one_device(path, steps)


@pytest.mark.parametrize("name", REDUCED)
def test_reduced_ranks_differ_by_rounding_alone(name: str, tmp_path: Path, memory: Any) -> None:
    make, settings = MODELS[name]
    path = make(tmp_path / "model", **settings)
    steps = steps_of(random_ids(46, 8))
    assert_rounded(on_ranks(path, steps, 2, **ADDED), one_device(path, steps))


@pytest.mark.parametrize("name", STORAGES)
def test_reduced_ranks_compute_the_same_in_every_run(name: str, tiny_llama: Path, memory: Any) -> None:
    """Their sums are added in one order, whichever rank comes last. Activations in bytes round most."""
    steps, storage = steps_of(random_ids(46, 9)), STORAGES[name]
    found = on_ranks(tiny_llama, steps, 2, **storage, **ADDED)
    assert found == on_ranks(tiny_llama, steps, 2, num_threads=2, **storage, **ADDED)
    assert_likely(found, one_device(tiny_llama, steps, **storage), 0.2 if "bytes" in name else 0.05)


def test_reduced_ranks_keep_groups_whole(tmp_path: Path, memory: Any) -> None:
    """Groups of 128 inputs, of which the second rank has the rest: 96 of 352, where half would divide one."""
    path = make_tiny_llama(tmp_path / "model", head_dim=64, intermediate_size=352)
    steps, storage = steps_of(random_ids(46, 10)), {**INT4, "weight_quant_group_size": 128}
    assert_likely(on_ranks(path, steps, 2, **storage, **ADDED), one_device(path, steps, **storage), 2e-3)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_1", "Q4_0"])
def test_reduced_ranks_share_blocks_of_a_gguf(quant: str, tmp_path: Path, memory: Any) -> None:
    """Groups of 32 inputs, as codes, with offsets and without."""
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512}
    path = make_tiny_gguf(tmp_path / "model.gguf", make_tiny_llama(tmp_path / "source", **sizes), quant)
    steps = steps_of(random_ids(46, 11))
    assert_likely(on_ranks(path, steps, 4, **ADDED), one_device(path, steps), 0.05)


def test_reduced_ranks_refuse_to_divide_a_group(tiny_llama: Path, memory: Any) -> None:
    plan = plan_for(tiny_llama, tensor_parallel=2, **ADDED, **{**INT4, "weight_quant_group_size": 64})
    text = (
        "config.tensor_parallel_mode = REDUCED gives each of 2 ranks 32 inputs of layers.0.o, of whose weights 64 "
        "share a scale; allowed: EXACT"
    )
    for rank in range(2):
        with pytest.raises(InvalidArgument) as refusal:
            make_rank(plan, rank).load(silent)
        assert refusal.value.message == text


def test_several_threads_of_each_rank_compute_the_same(tiny_llama: Path, memory: Any) -> None:
    steps = steps_of(random_ids(46, 5))
    assert on_ranks(tiny_llama, steps, 2, num_threads=2) == one_device(tiny_llama, steps, num_threads=3)


def test_copied_blocks_hold_the_heads_of_all_ranks(tiny_llama: Path, memory: Any) -> None:
    """A prompt's block goes to the host tier and comes back elsewhere: the next token is the same."""
    found, expected = copied_and_not(cpu, tiny_llama, random_ids(17, 6))
    assert found == expected


def test_each_rank_holds_its_share(tmp_path: Path, memory: Any) -> None:
    """Half of all matrices and heads, where tiles divide them; norms and the tables of positions whole."""
    path = make_tiny_llama(tmp_path / "model", hidden_size=128, intermediate_size=256, vocab_size=512)
    whole = ready(make_runner(plan_for(path, max_batch=4)))
    with Ranks(plan_for(path, max_batch=4, tensor_parallel=2), make_rank) as ranks:
        one = whole.size()
        for sizes in ranks.sizes:
            assert one.weight_bytes // 2 < sizes.weight_bytes < one.weight_bytes * 0.6
            assert (sizes.num_blocks, sizes.kv_bytes) == (one.num_blocks, one.kv_bytes // 2)
    whole.close()


@pytest.mark.parametrize("end", ["leave", "interrupt"])
def test_a_step_ends_where_a_rank_does_not_come(tiny_llama: Path, memory: Any, end: str) -> None:
    """Another thread ends it, as the rank is gone, or as nobody wants the step; steps after it fail at once."""
    steps = steps_of(random_ids(46, 7))
    with Ranks(plan_for(tiny_llama, tensor_parallel=2), make_rank) as ranks:
        ranks.run(steps[0])
        first, errors = ranks.runners[0], []

        def run() -> None:
            with pytest.raises(Internal, match="another rank of the model is gone") as error:
                first.run(steps[1])
            errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        getattr(first, end)()
        thread.join()
        assert errors
        with pytest.raises(Internal, match="another rank of the model is gone"):
            ranks.runners[1].follow(steps[1])


def test_a_rank_without_the_others_file_says_so(tiny_llama: Path, memory: Any) -> None:
    with Ranks(plan_for(tiny_llama, tensor_parallel=2), make_rank) as ranks:
        with pytest.raises(Internal, match="rank 1 of the model cannot open /nowhere: No such file or directory"):
            ranks.runners[1].join("/nowhere")


@pytest.mark.parametrize(
    ("total", "ranks", "width"), [(256, 2, 128), (192, 2, 128), (96, 2, 48), (768, 4, 192), (5, 2, 3)]
)
def test_parts_are_cut_by_tiles_where_they_are_wide(total: int, ranks: int, width: int) -> None:
    assert CpuShare(0, ranks).width(total) == width
