"""What one backend honours and another does not is refused by name, where it is known which one computes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from headrace_engine.config import ActivationQuant, ComputeDtype, ComputeUnit, KvCacheMode, RuntimeConfig, WeightQuant
from headrace_engine.engine.config import backend_fields
from headrace_engine.engine.config.backend_fields import check_backend, check_storage
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


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has a driver, and so perhaps a CUDA device."""
    monkeypatch.setattr(backend_fields, "has_driver", lambda: True)


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has none."""
    monkeypatch.setattr(backend_fields, "has_driver", lambda: False)


def files(*storages: str) -> Any:
    """What `check_storage` looks at of a model's files."""
    return SimpleNamespace(tensors={s: SimpleNamespace(stored=SimpleNamespace(storage=s)) for s in storages})


def test_torch_stores_weights_and_activations_in_the_dtype() -> None:
    assert refused("torch", **STORAGE) == [f"config.{name}" for name in STORAGE]
    plain = {"kv_cache_mode": KvCacheMode.UINT4, "weight_quant": WeightQuant.NONE, "block_size": 8}
    check_backend(replace(PLAIN, compute_unit=ComputeUnit.CPU, **plain), "torch")
    assert refused("torch", compute_unit=ComputeUnit.CPU_NUMA) == ["config.compute_unit"]


def test_cpu_quantizes_takes_large_blocks_and_no_other_device() -> None:
    changes = {**STORAGE, "kv_cache_mode": KvCacheMode.UINT4, "block_size": 32}
    check_backend(replace(PLAIN, compute_unit=ComputeUnit.CPU, **changes), "cpu")
    assert refused("cpu", block_size=8, compute_unit=ComputeUnit.CUDA) == ["config.compute_unit", "config.block_size"]
    assert refused("cpu", activation_quant=ActivationQuant.FP8) == ["config.activation_quant"]


def test_auto_is_known_by_the_device(driver: None) -> None:
    assert refused("auto", compute_unit=ComputeUnit.CUDA, **STORAGE) == [f"config.{name}" for name in STORAGE]
    for unit in (ComputeUnit.CPU, ComputeUnit.CPU_NUMA):
        assert refused("auto", compute_unit=unit, block_size=8) == ["config.block_size"]
        check_backend(replace(PLAIN, compute_unit=unit, **STORAGE), "auto")
    check_backend(replace(PLAIN, block_size=8, **STORAGE), "auto")


def test_a_checked_build_leaves_the_choice_on_a_card_to_the_core(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_fields, "why_unchecked", lambda: "")
    check_backend(replace(PLAIN, compute_unit=ComputeUnit.CUDA, **STORAGE), "auto")
    assert refused("auto", compute_unit=ComputeUnit.CPU, block_size=8) == ["config.block_size"]


def test_without_a_driver_auto_is_the_cpu(no_driver: None) -> None:
    assert refused("auto", activation_quant=ActivationQuant.FP8) == ["config.activation_quant"]
    check_backend(replace(PLAIN, **STORAGE), "auto")


@pytest.mark.parametrize("backend", ["auto", "torch", "cuda"])
def test_without_a_driver_there_is_no_cuda_device_to_compute_on(backend: str, no_driver: None) -> None:
    with pytest.raises(InvalidArgument, match=r"^config.compute_unit = CUDA, but .* no NVIDIA driver .*allowed: CPU"):
        check_backend(replace(PLAIN, compute_unit=ComputeUnit.CUDA), backend)
    check_backend(PLAIN, backend)


def test_eight_bit_activations_need_integer_weights_on_the_cpu(no_driver: None) -> None:
    config = replace(PLAIN, activation_quant=ActivationQuant.INT8)
    for backend in ("auto", "cpu"):
        with pytest.raises(InvalidArgument, match="= INT8 needs quantized weights"):
            check_storage(config, files("BF16", "F32"), backend)
    check_storage(config, files("F32", "Q4_1"), "cpu")
    check_storage(config, files("BF16"), "cuda")
    check_storage(replace(config, weight_quant=WeightQuant.INT8), files("BF16"), "cpu")


def test_cuda_computes_in_bfloat16_with_quantized_weights() -> None:
    check_backend(replace(PLAIN, weight_quant=WeightQuant.INT4, weight_quant_group_size=32, block_size=32), "cuda")
    for quant in ActivationQuant:
        check_backend(replace(PLAIN, activation_quant=quant), "cuda")
    assert refused("cuda", weight_quant=WeightQuant.INT8, weight_quant_group_size=16, dtype=ComputeDtype.FLOAT16) == [
        "config.weight_quant_group_size",
        "config.dtype",
    ]
