"""GGUF files of models with latent attention: their metadata, and heads in codes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from headrace_engine.backends.cpu.weights.rows import TensorRows, orders_of
from headrace_engine.errors import BadModel
from headrace_engine.models import assembled
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families import family_of_gguf
from headrace_engine.models.families.family import GgufHints
from headrace_engine.models.files import PLACED_COLUMNS, Assembly, StoredTensor
from headrace_engine.models.loaders.gguf_header import read_header
from headrace_engine.models.loaders.gguf_types import BLOCKS
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


@pytest.mark.parametrize(
    ("layers", "experts", "found"),
    [(61, 256, (8, 4)), (60, 160, (8, 3)), (61, 384, (1, 1)), (27, 256, (1, 1))],
)
def test_groups_of_files_that_name_none(layers: int, experts: int, found: tuple[int, int]) -> None:
    """Those of DeepSeek-V3 and V2 are known by their shapes; others have none, and so do files that say 0."""
    changes = {"block_count": layers, "expert_count": experts, "expert_group_used_count": None}
    spec = read(R1, **changes, expert_group_count=None)
    assert spec.experts is not None
    assert (spec.experts.groups, spec.experts.groups_used) == found
    none = read(R1, **changes, expert_group_count=0)
    assert none.experts is not None
    assert none.experts.groups == 1


def test_layers_that_predict_further_ids_are_left_out() -> None:
    spec = read(R1, block_count=62, nextn_predict_layers=1, expert_group_count=None, expert_group_used_count=None)
    assert (spec.num_layers, len(spec.layers)) == (61, 61)
    assert spec.experts is not None
    assert spec.experts.groups == 8
    with pytest.raises(BadModel, match="nextn_predict_layers = 61 must be an integer from 0 to 60"):
        read(R1, nextn_predict_layers=61)


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
        ({"expert_gating_func": 3}, "expert_gating_func = 3 is not supported for this architecture; supported are"),
        ({"expert_group_count": 7}, "expert_group_count = 7 does not divide expert_count = 256"),
        ({"expert_group_used_count": 9}, "expert_group_used_count = 9 must be an integer from 1 to 8"),
        ({"expert_group_used_count": None}, "expert_group_used_count is absent and must be"),
        ({"expert_gating_func": True}, "expert_gating_func = True must be an integer"),
        ({"expert_gating_func": 2.0}, "expert_gating_func = 2.0 must be an integer"),
        ({"expert_gating_func": 1}, "expert_weights_norm = True is not supported with softmax"),
        ({"expert_group_count": 128}, "expert_group_count = 128 must be an integer from 0 to 64"),
        (
            {"expert_group_count": None},
            "expert_group_used_count = 4 is not supported: deepseek2.expert_group_count is absent",
        ),
        ({"expert_group_count": 1}, "expert_group_used_count = 4 is not supported: deepseek2.expert_group_count = 1"),
        (
            {"attention__head_count_kv": 2},
            "head_count_kv = 2 is not supported: 128 heads have keys of their own; allow",
        ),
        ({"attention__key_length_mla": 191}, "attention.key_length_mla = 191 must be even"),
        ({"attention__key_length": 192}, "key_length = 192 contradicts attention.kv_lora_rank + rope.dimension_count"),
        ({"attention__value_length": 128}, "value_length = 128 contradicts attention.kv_lora_rank = 512"),
        ({"attention__key_length_mla": None}, "attention.key_length_mla is absent and must be an integer"),
        ({"rope__scaling__yarn_attn_factor": 0.5}, "yarn_attn_factor = 0.5 is not supported; allowed: 1"),
        ({"rope__scaling__yarn_ext_factor": 0.0}, "yarn_ext_factor = 0.0 is not supported; allowed: 1"),
        (
            {"rope__scaling__type": None},
            "yarn_log_multiplier = 0.1 is not supported without rope.scaling.type; allowed",
        ),
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


@pytest.mark.parametrize("given", ["x", -1.0, False])
def test_a_multiplier_is_read_where_nothing_uses_it(given: object) -> None:
    with pytest.raises(BadModel, match=f"yarn_log_multiplier = {given!r} must be"):
        read(LITE, rope__scaling__type="none", rope__scaling__yarn_log_multiplier=given)


def test_one_head_of_keys_needs_their_size() -> None:
    with pytest.raises(BadModel, match=r"head_count_kv = 1 .*: 16, or 1 with attention\.key_length_mla"):
        read(LITE, attention__head_count_kv=1)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("query_rank", [40, None])
@pytest.mark.parametrize("name", ["deepseek2", "deepseek3", "glm4 moe lite"])
def test_either_layout_is_that_of_directories(name: str, query_rank: int | None, joint: bool, tmp_path: Path) -> None:
    """With and without a latent of queries, and to the same numbers, of which other tests ask transformers."""
    first = {"mlp_layer_types": ["dense", "sparse", "sparse"]} if name == "glm4 moe lite" else {}
    path = make_tiny_family(tmp_path / "model", name, q_lora_rank=query_rank, **first)
    file = write_gguf(tmp_path / "tiny.gguf", path, joint=joint)
    files, directory = open_model(str(file)), open_model(str(path))
    assert files.spec.latent == directory.spec.latent
    assert files.spec.layers == directory.spec.layers
    assert files.spec.experts is not None
    assert directory.spec.experts is not None
    assert replace(files.spec.experts, scale=directory.spec.experts.scale) == directory.spec.experts
    cpu = torch.device("cpu")
    made, wanted = (load_weights(each, torch.float32, cpu, lambda *_: None) for each in (files, directory))
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[part], wanted[part]) for part in made)


@pytest.mark.parametrize("first", [0, 3])
def test_blocks_of_256_become_numbers_where_heads_are_narrower(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the last matrix in parts of two, from the first one on or from a later one."""
    monkeypatch.setattr(assembled, "_VALUES_AT_ONCE", 2 * 768)
    rng, kind = np.random.default_rng(0), BLOCKS["Q4_K"]
    rows, heads, values, size = 7, 4, 128, 192
    packed = rng.integers(0, 256, (rows, heads * values // kind.block, kind.bytes), np.uint8)
    packed[..., :4] = rng.standard_normal((*packed.shape[:2], 2)).astype(np.float16).view(np.uint8)
    packed = packed.reshape(rows, -1)
    part = StoredTensor("o", "Q4_K", (rows, heads * values), Path("tiny.gguf"), 0, packed.nbytes)
    places = (*range(values), *(-1,) * (size - values))
    made = Assembly(PLACED_COLUMNS, (part,), values, places=places)
    whole = StoredTensor("o", "F32", (rows, heads * size), part.file, 0, rows * heads * size * 4, assembly=made)
    stored = whole.rows(first, rows - first)

    def taken(tensor: StoredTensor) -> memoryview:
        return memoryview(packed.tobytes())[tensor.offset : tensor.offset + tensor.nbytes]

    got = np.frombuffer(assembled.assemble(stored, taken), np.float32).reshape(rows - first, heads, size)
    numbers = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_K).reshape(rows, heads, values)
    np.testing.assert_array_equal(got[..., :values], numbers[first:])
    assert not got[..., values:].any()


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
    for each, path in ((files, "coded.gguf"), (whole, "whole.gguf")):
        assert each.weight_bytes == sum(tensor.nbytes for tensor in read_header(tmp_path / path).tensors.values())
    for part in ("q", "k", "v", "o", "k_spread"):
        info = files.tensors[f"layers.1.{part}"]
        got, wanted = coded[info.name], exact[info.name]
        assert (got - wanted).abs().max() <= wanted.abs().max() * (0.01 if quant == "Q8_0" else 0.09)
        rows = TensorRows(info, orders_of(info, files.spec))
        np.testing.assert_array_equal(rows.floats(0, rows.outputs), got.numpy())


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"blk.0.attn_kv_b.weight": (144, 24)}, "blk.0.attn_kv_b.weight stands beside blk.0.attn_k_b.weight: keys and"),
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


def test_absent_tensors_are_named_with_both_layouts(tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path / "model", "deepseek3")
    with pytest.raises(BadModel) as caught:
        open_model(str(write_gguf(tmp_path / "tiny.gguf", path, metadata={"deepseek2.block_count": 4})))
    keys, names = "(or blk.3.attn_k_b.weight and blk.3.attn_v_b.weight)", ("attn_q_b", "attn_kv_b", "attn_output")
    queries, joined, last = (f"blk.3.{name}.weight" for name in names)
    needed = "tiny.gguf: 3 tensor(s) that deepseek2 of its metadata needs are absent"
    assert caught.value.message == f"{needed}: {queries}, {joined} {keys}, {last}"
