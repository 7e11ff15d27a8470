"""GGUF files of models with latent attention: their metadata, and heads in codes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends.cpu.weights.rows import TensorRows, orders_of
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families import family_of_gguf
from headrace_engine.models.families.family import GgufHints
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.weights import load_weights
from support.models.tiny_gguf import write_gguf
from support.models.tiny_models import make_tiny_family, make_tiny_gguf

LITE = {
    "block_count": 27, "context_length": 163_840, "embedding_length": 2048, "feed_forward_length": 10_944,
    "attention.head_count": 16, "attention.head_count_kv": 16, "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.key_length": 192, "attention.value_length": 128, "attention.kv_lora_rank": 512, "vocab_size": 102_400,
    "expert_count": 64, "expert_used_count": 6, "expert_shared_count": 2, "expert_feed_forward_length": 1408,
    "expert_weights_scale": 1.0, "leading_dense_block_count": 1, "rope.dimension_count": 64, "rope.freq_base": 10_000.0,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}  # fmt: skip
"""The metadata of DeepSeek-V2-Lite, keys and values as one matrix."""
R1 = {
    **LITE, "block_count": 61, "attention.head_count": 128, "attention.head_count_kv": 1, "attention.key_length": 576,
    "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
    "attention.q_lora_rank": 1536, "expert_count": 256, "expert_used_count": 8, "expert_group_count": 8,
    "expert_group_used_count": 4, "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_gating_func": 2,
    "rope.scaling.yarn_log_multiplier": 0.1,
}  # fmt: skip
CORRECTION = frozenset({"output.weight", "blk.3.exp_probs_b.bias"})


def read(metadata: dict[str, Any], names: frozenset[str] = CORRECTION, **changes: Any) -> DecoderSpec:
    """The decoder that metadata describes; __ is a dot in names of changes."""
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    fields = {f"deepseek2.{name}": value for name, value in {**metadata, **changed}.items()}
    reader = family_of_gguf("deepseek2", "tiny.gguf").from_metadata["deepseek2"]
    return reader(ConfigFields(fields, "tiny.gguf", "deepseek2."), GgufHints(names, None))


def test_metadata_of_old_files() -> None:
    spec = read(LITE, frozenset())
    factor = 0.1 * 0.707 * math.log(40) + 1
    assert spec.attention_scale == pytest.approx(192**-0.5 * factor**2)
    assert (spec.num_kv_heads, spec.head_dim, spec.rotary_dim, spec.ropes[0].attention_factor) == (16, 192, 64, 1.0)
    assert spec.latent is not None
    assert (spec.latent.rank, spec.latent.query_rank, spec.latent.value_dim) == (512, None, 128)
    assert spec.experts is not None
    assert (spec.experts.sigmoid, spec.experts.shared_width, spec.experts.groups) == (False, 2816, 1)


def test_metadata_of_new_files() -> None:
    spec = read(R1)
    assert spec.attention_scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert (spec.num_kv_heads, spec.head_dim, spec.rotary_dim) == (128, 192, 64)
    assert spec.latent is not None
    assert (spec.latent.rank, spec.latent.query_rank, spec.latent.value_dim) == (512, 1536, 128)
    experts = spec.experts
    assert experts is not None
    assert (experts.corrected, experts.normalised, experts.scale) == (True, True, 2.5)
    assert (experts.groups, experts.groups_used) == (8, 4)


def test_a_correction_names_the_function_where_metadata_does_not() -> None:
    """As in the first files of GLM-4.7-Flash."""
    experts = read(R1, expert_gating_func=None).experts
    assert experts is not None
    assert experts.sigmoid
    assert experts.corrected


@pytest.mark.parametrize(
    ("kind", "multiplier", "factor"),
    [("yarn", 0.0, 0.1 * math.log(40) + 1), ("yarn", None, 0.1 * math.log(40) + 1), ("none", 0.0707, 1.0)],
)
def test_scores_are_scaled_by_a_multiplier_of_yarn_alone(kind: str, multiplier: float | None, factor: float) -> None:
    spec = read(LITE, frozenset(), rope__scaling__yarn_log_multiplier=multiplier, rope__scaling__type=kind)
    assert spec.attention_scale is None
    assert spec.ropes[0].attention_factor == pytest.approx(factor)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_gating_func": 3}, "expert_gating_func = 3 is not supported; supported are 1, 2"),
        ({"expert_group_count": 7}, "expert_group_count = 7 does not divide expert_count = 256"),
        ({"expert_group_used_count": 9}, "expert_group_used_count = 9 must be an integer from 1 to 8"),
        ({"expert_group_used_count": None}, "expert_group_used_count is absent and must be"),
        ({"attention__head_count_kv": 2}, "attention.head_count_kv = 2 is not supported: 128 heads have keys of their"),
        ({"attention__temperature_scale": 0.1}, "attention.temperature_scale = 0.1 is not supported"),
        ({"attention__key_length_mla": 64}, "attention.key_length_mla = 64 must be an integer from 65"),
        ({"attention__value_length_mla": 193}, "attention.value_length_mla = 193 must be an integer from 1 to 192"),
        ({"rope__dimension_count": 258}, "rope.dimension_count = 258 is not supported; allowed: at most 256"),
        ({"rope__scaling__type": "linear"}, "yarn_log_multiplier = 0.1 is not supported with rope.scaling.type = 'lin"),
        ({"rope__scaling__yarn_log_multiplier": 1e18}, "yarn_log_multiplier = 1e+18 is out of range"),
        ({"leading_dense_block_count": 61}, "leading_dense_block_count = 61 leaves none of 61 layers"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadModel) as caught:
        read(R1, **changes)
    assert words in caught.value.message


@pytest.mark.parametrize("name", ["deepseek2", "deepseek3"])
@pytest.mark.parametrize(("quant", "values"), [("Q8_0", 32), ("Q4_1", 16)])
def test_codes_of_heads_are_those_of_the_file(name: str, quant: str, values: int, tmp_path: Path) -> None:
    """Where rows are placed, and where columns are in whole blocks; else they become numbers."""
    sizes = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "kv_lora_rank": 64, "v_head_dim": values}
    path = make_tiny_family(tmp_path / name, name, **sizes)
    files = open_model(str(make_tiny_gguf(tmp_path / "coded.gguf", path, quant)))
    whole = open_model(str(make_tiny_gguf(tmp_path / "whole.gguf", path)))
    coded, exact = (load_weights(each, torch.float32, torch.device("cpu"), lambda *_: None) for each in (files, whole))
    queries = quant if name == "deepseek2" else "F32"  # Their latent has no whole blocks.
    keys, last = quant if name == "deepseek2" else "F32", quant if values == 32 else "F32"
    assert {part: files.tensors[f"layers.1.{part}"].stored.storage for part in ("q", "k", "v", "o", "k_spread")} == {
        "q": queries, "k": keys, "v": quant, "o": last, "k_spread": "F32",
    }  # fmt: skip
    assert files.weight_bytes == sum(each.stored.file_bytes for each in files.tensors.values()) < whole.weight_bytes
    for part in ("q", "k", "v", "o", "k_spread"):
        info = files.tensors[f"layers.1.{part}"]
        got, wanted = coded[info.name], exact[info.name]
        assert (got - wanted).abs().max() <= wanted.abs().max() * (0.01 if quant == "Q8_0" else 0.09)
        rows = TensorRows(info, orders_of(info, files.spec))
        np.testing.assert_array_equal(rows.floats(0, rows.outputs), got.numpy())


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"blk.0.attn_kv_b.weight": (144, 24)}, "does not have: blk.0.attn_k_b.weight, blk.0.attn_v_b.weight"),
        ({"blk.1.attn_q_a.bias": (40,)}, "does not have: blk.1.attn_q_a.bias"),
        ({"blk.1.attn_v_heads.weight": (128, 24)}, "blk.1.attn_q_b.weight stands beside blk.1.attn_v_heads.weight"),
    ],
)
def test_tensors_of_both_layouts_are_refused(extra: dict[str, tuple[int, ...]], words: str, tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path / "model", "deepseek3")
    tensors = {name: np.zeros(shape, np.float32) for name, shape in extra.items()}
    with pytest.raises(BadModel) as caught:
        open_model(str(write_gguf(tmp_path / "tiny.gguf", path, extra_tensors=tensors)))
    assert words in caught.value.message
