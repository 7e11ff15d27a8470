"""Models whose key biases four bits do not stand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headrace_engine.config import KvCacheMode, RuntimeConfig
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.models.prepare import prepare
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.key_biases import large_key_biases
from safetensors.torch import load_file, save_file
from support.models.tiny_models import make_tiny_gguf, make_tiny_qwen2


def with_biases(path: Path, sizes: dict[int, float], dtype: torch.dtype) -> Path:
    """A Qwen2 of six layers; the bias of the last key head has this root mean square, by layer."""
    model = make_tiny_qwen2(path, num_hidden_layers=6)
    file = model / "model.safetensors"
    tensors = load_file(file)
    for layer, size in sizes.items():
        bias = tensors[f"model.layers.{layer}.self_attn.k_proj.bias"]
        bias.view(2, -1)[1] = size
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_b5_layers_with_a_large_key_bias_are_named(tmp_path: Path, dtype: torch.dtype) -> None:
    model = with_biases(tmp_path / "model", {0: 62.0, 2: 3.5, 5: 8.0}, dtype)
    reported = large_key_biases(open_model(str(model)))
    assert "(layers 0, 5: up to 62;" in reported
    assert "INT8" in reported


def test_b5_layers_of_a_gguf_are_named_too(tmp_path: Path) -> None:
    model = with_biases(tmp_path / "model", dict.fromkeys(range(6), -9.0), torch.float32)
    gguf = make_tiny_gguf(tmp_path / "model.gguf", model, "F16")
    assert "(layers 0, 1, 2, 3 and 2 more: up to 9;" in large_key_biases(open_model(str(gguf)))


def test_b5_a_model_without_large_ones_has_no_warning(tmp_path: Path) -> None:
    assert large_key_biases(open_model(str(with_biases(tmp_path / "model", {1: 3.9}, torch.float32)))) == ""


def test_b5_an_install_warns_where_keys_get_four_bits(tmp_path: Path) -> None:
    model = with_biases(tmp_path / "model", {0: 62.0}, torch.bfloat16)
    for mode, expected in ((KvCacheMode.UINT4, ["config.kv_cache_mode"]), (KvCacheMode.INT8, [])):
        config = RuntimeConfig(model_name="q", model_path=str(model), kv_cache_mode=mode)
        warnings = prepare(config, EngineOptions(allow_hub=False)).effective.warnings
        assert [warning.field for warning in warnings] == expected
