"""Memory of the cpu backend, and what it refuses."""

from __future__ import annotations

import pytest
from headrace_engine.backends.torch import make_runner as make_oracle
from headrace_engine.config import (
    ActivationQuant,
    ComputeDtype,
    ComputeUnit,
    KvCacheMode,
    RopeScaling,
    RopeScalingType,
    WeightQuant,
)
from headrace_engine.errors import InvalidArgument, OutOfMemory
from support.models.tiny_models import make_tiny_gguf

MIB = 2**20
KV_BYTES_A_TOKEN = 2 * 2 * 2 * 16 * 4
"""Keys and values, 2 layers, 2 heads of 16 entries, 4 bytes."""


@pytest.mark.parametrize(
    ("mode", "dtype", "nbytes"),
    [
        (KvCacheMode.DEFAULT, ComputeDtype.BFLOAT16, KV_BYTES_A_TOKEN // 2),
        (KvCacheMode.INT8, ComputeDtype.BFLOAT16, 2 * 2 * 2 * (16 + 8)),
        (KvCacheMode.UINT4, ComputeDtype.FLOAT32, 2 * 2 * 2 * (8 + 8)),
    ],
)
def test_keys_and_values_take_what_their_mode_says(mode, dtype, nbytes, tiny_llama, memory, opened):
    """Codes have a step and a lowest value beside them for each token and head."""
    sizes = opened(tiny_llama, max_batch=4, kv_cache_mode=mode, dtype=dtype).size()
    assert sizes.kv_bytes == 4 * 512 * nbytes


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"compute_unit": ComputeUnit.CUDA}, "config.compute_unit", "NOT_SUPPORTED"),
        ({"compute_unit": ComputeUnit.CPU_NUMA, "device_list": (63,)}, "config.device_list", "INVALID_FIELD"),
        ({"device_list": (1,)}, "config.device_list", "INVALID_FIELD"),
        ({"block_size": 8}, "config.block_size", "NOT_SUPPORTED"),
        ({"num_threads": 1025}, "config.num_threads", "INVALID_FIELD"),
        ({"max_length": 513}, "config.max_length", "INVALID_FIELD"),
        ({"activation_quant": ActivationQuant.FP8}, "config.activation_quant", "NOT_SUPPORTED"),
        ({"activation_quant": ActivationQuant.INT8}, "config.activation_quant", "INVALID_FIELD"),
        ({"weight_quant_group_size": 32}, "config.weight_quant_group_size", "INVALID_FIELD"),
        (
            {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 48},
            "config.weight_quant_group_size",
            "NOT_SUPPORTED",
        ),
    ],
    ids=str,
)
def test_what_is_not_honoured_is_refused_by_name(changes, field, reason, tiny_llama, opened):
    with pytest.raises(InvalidArgument) as failure:
        opened(tiny_llama, **changes)
    assert (failure.value.violations[0].field, failure.value.reason) == (field, reason)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_quant": WeightQuant.INT8},
        {"activation_quant": ActivationQuant.INT8},
        {"weight_quant_group_size": 32},
    ],
    ids=str,
)
def test_the_torch_backend_refuses_by_name_what_this_one_does(changes, tiny_llama, opened):
    with pytest.raises(InvalidArgument, match="is not supported by the torch backend") as failure:
        opened(tiny_llama, make_oracle, **changes)
    assert failure.value.reason == "NOT_SUPPORTED"
    assert failure.value.violations[0].field == f"config.{next(iter(changes))}"


def test_eight_bit_activations_take_any_integer_weights(tiny_llama, tmp_path, memory, opened):
    opened(tiny_llama, activation_quant=ActivationQuant.INT8, weight_quant=WeightQuant.INT8)
    blocks = make_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama, "Q8_0")
    opened(blocks, activation_quant=ActivationQuant.INT8)
    with pytest.raises(InvalidArgument, match="needs quantized weights"):
        opened(blocks, activation_quant=ActivationQuant.INT8, dtype=ComputeDtype.FLOAT32)


def test_a_caller_may_stretch_the_length_with_rope_scaling(tiny_llama, memory, opened):
    scaling = RopeScaling(RopeScalingType.LINEAR, 2.0)
    assert opened(tiny_llama, max_length=1024, rope_scaling=scaling).size().max_length == 1024


def test_a_pool_takes_a_quarter_of_the_memory_limit(tiny_llama, memory, opened):
    runner = opened(tiny_llama, max_batch=2048)
    memory(400 * MIB)
    assert runner.size().kv_bytes == pytest.approx(100 * MIB, abs=16 * KV_BYTES_A_TOKEN)


def test_a_memory_ratio_replaces_the_quarter(tiny_llama, memory, opened):
    sizes = opened(tiny_llama, memory_ratio=0.5).size()
    taken = sizes.weight_bytes + sizes.workspace_bytes + sizes.kv_bytes
    assert taken == pytest.approx(512 * MIB, abs=16 * KV_BYTES_A_TOKEN)


def test_a_length_that_does_not_fit_is_out_of_memory(tiny_llama, memory, opened):
    runner = opened(tiny_llama, max_length=512, max_batch=1, max_prefill_tokens=16)
    sizes = runner.size()
    memory(sizes.weight_bytes + sizes.workspace_bytes + MIB // 8)
    with pytest.raises(OutOfMemory, match=r"max_length 512 needs 256\.0 KiB of KV cache .* lower max_length to 256"):
        runner.size()
