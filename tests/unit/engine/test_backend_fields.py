"""What one backend honours and another does not is refused by name, where it is known which one computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headrace_engine.config import ActivationQuant, ComputeDtype, ComputeUnit, KvCacheMode, RuntimeConfig, WeightQuant
from headrace_engine.engine.backend_fields import check_backend
from headrace_engine.errors import InvalidArgument

PLAIN = RuntimeConfig(model_name="smol", model_path="/models/smol")
STORAGE: dict[str, Any] = {
    "weight_quant": WeightQuant.INT4,
    "weight_quant_group_size": 32,
    "activation_quant": ActivationQuant.INT8,
}


def refused(backend: str, **values: Any) -> list[str]:
    """The fields that are refused."""
    with pytest.raises(InvalidArgument) as caught:
        check_backend(replace(PLAIN, **values), backend)
    assert caught.value.reason == "NOT_SUPPORTED"
    return [violation.field for violation in caught.value.violations]


def test_the_torch_backend_stores_weights_and_activations_in_the_dtype() -> None:
    assert refused("torch", **STORAGE) == [f"config.{name}" for name in STORAGE]
    plain = {"kv_cache_mode": KvCacheMode.UINT4, "weight_quant": WeightQuant.NONE, "block_size": 8}
    check_backend(replace(PLAIN, compute_unit=ComputeUnit.CPU, **plain), "torch")
    assert refused("torch", compute_unit=ComputeUnit.CPU_NUMA) == ["config.compute_unit"]


def test_the_cpu_backend_quantises_and_takes_larger_blocks_and_no_other_device() -> None:
    changes = {**STORAGE, "kv_cache_mode": KvCacheMode.UINT4, "block_size": 32}
    check_backend(replace(PLAIN, compute_unit=ComputeUnit.CPU, **changes), "cpu")
    assert refused("cpu", block_size=8, compute_unit=ComputeUnit.CUDA) == ["config.compute_unit", "config.block_size"]
    assert refused("cpu", activation_quant=ActivationQuant.FP8) == ["config.activation_quant"]


def test_auto_is_known_by_the_device() -> None:
    assert refused("auto", compute_unit=ComputeUnit.CUDA, **STORAGE) == [f"config.{name}" for name in STORAGE]
    for unit in (ComputeUnit.CPU, ComputeUnit.CPU_NUMA):
        assert refused("auto", compute_unit=unit, block_size=8) == ["config.block_size"]
        check_backend(replace(PLAIN, compute_unit=unit, **STORAGE), "auto")
    check_backend(replace(PLAIN, block_size=8, **STORAGE), "auto")


@pytest.mark.parametrize("backend", ["cuda", "sim"])
def test_the_cuda_backend_computes_in_bfloat16_with_weights_in_codes(backend: str) -> None:
    check_backend(replace(PLAIN, weight_quant=WeightQuant.INT4, weight_quant_group_size=32, block_size=32), backend)
    for quant in ActivationQuant:
        check_backend(replace(PLAIN, activation_quant=quant), backend)
    assert refused(backend, weight_quant=WeightQuant.INT8, weight_quant_group_size=16, dtype=ComputeDtype.FLOAT16) == [
        "config.weight_quant_group_size",
        "config.dtype",
    ]
