"""Latent attention of published configs, and checkpoints whose heads cannot be arranged."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.config import ComputeDtype, RopeScaling, RopeScalingType, WeightQuant
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.config_fields import MOST_NUMBER
from headrace_engine.models.rope.override import apply_rope_scaling
from headrace_engine.models.weights import load_weights
from safetensors.torch import load_file, save_file
from support.models.tiny_models import make_tiny_family
from transformers import DeepseekV3Config
from unit.models.test_families import read

LITE = {
    "hidden_size": 2048, "intermediate_size": 10_944, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "max_position_embeddings": 163_840, "rms_norm_eps": 1e-6, "rope_theta": 10_000,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "norm_topk_prob": False,
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_method": "greedy",
    "rope_scaling": {
        "type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip
"""The config of DeepSeek-V2-Lite."""
MOONLIGHT = {
    **LITE, "rope_theta": 50_000.0, "max_position_embeddings": 8192, "rope_scaling": None, "norm_topk_prob": True,
    "routed_scaling_factor": 2.446, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-5,
}  # fmt: skip
QUERIES, OWN_KEYS = (f"model.layers.1.self_attn.{name}.weight" for name in ("q_b_proj", "k_heads"))
OWN = {OWN_KEYS: torch.zeros(128, 24)}
KV = "model.layers.1.self_attn.kv_b_proj.weight"


def test_the_scale_of_scores_has_the_square_of_yarns_factor() -> None:
    spec = read("DeepseekV2ForCausalLM", **LITE)
    factor = 0.1 * 0.707 * math.log(40) + 1
    assert spec.attention_scale == pytest.approx(192**-0.5 * factor**2)
    assert (spec.head_dim, spec.rotary_dim, spec.ropes[0].attention_factor) == (192, 64, 1.0)
    assert [layer.experts for layer in spec.layers] == [False, *[True] * 26]
    assert spec.experts is not None
    assert (spec.experts.shared_width, spec.experts.sigmoid, spec.experts.normalised) == (2816, False, False)


@pytest.mark.parametrize("mscale", [1e-30, 1e18])
def test_scales_of_scores_are_numbers_of_float32(mscale: float) -> None:
    scaling = {"type": "yarn", "factor": MOST_NUMBER, "mscale": 1e18, "mscale_all_dim": mscale}
    small = {**LITE, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 4}
    spec = read("DeepseekV2ForCausalLM", **{**small, "rope_scaling": scaling})
    assert 0 < spec.score_scale < MOST_NUMBER
    assert 0 < spec.ropes[0].attention_factor < MOST_NUMBER


@pytest.mark.parametrize("name", ["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"])
def test_a_size_of_heads_is_what_rotates_of_them(name: str) -> None:
    """As transformers writes it into configs; DeepSeek's classes do not read it."""
    lengths = [64] if name.startswith("Glm") else [64, 192]
    config = MOONLIGHT if name != "DeepseekV2ForCausalLM" else LITE
    assert {read(name, **config, head_dim=each).head_dim for each in lengths} == {192}


def test_norms_of_latents_have_their_own_eps() -> None:
    spec = read("DeepseekV3ForCausalLM", **MOONLIGHT)
    assert spec.latent is not None
    assert (spec.norm_eps, spec.latent.eps, spec.score_scale) == (1e-5, 1e-6, 192**-0.5)
    assert spec.experts is not None
    assert (spec.experts.corrected, spec.experts.normalised, spec.experts.scale) == (True, True, 2.446)


@pytest.mark.parametrize(("given", "normalised"), [(None, False), (False, False), (True, True), (..., True)])
def test_weights_are_normalised_as_transformers_reads_it(given: Any, normalised: bool) -> None:
    """A null is false there, and what is absent true."""
    fields = {} if given is ... else {"norm_topk_prob": given}
    assert bool(DeepseekV3Config(**fields).norm_topk_prob) is normalised
    experts = read("DeepseekV3ForCausalLM", **{**MOONLIGHT, "norm_topk_prob": given}).experts
    assert experts is not None
    assert experts.normalised is normalised


@pytest.mark.parametrize("kind", [RopeScalingType.LINEAR, RopeScalingType.YARN, RopeScalingType.DYNAMIC])
def test_a_scaling_in_the_scores_is_not_replaced(kind: RopeScalingType) -> None:
    """Neither the factor of the model's own scaling nor none at all would be what its scores are scaled by."""
    lite, plain = read("DeepseekV2ForCausalLM", **LITE), read("DeepseekV3ForCausalLM", **MOONLIGHT)
    with pytest.raises(InvalidArgument, match=f"of type {kind} is not supported for this model") as caught:
        apply_rope_scaling(lite, RopeScaling(kind, factor=8))
    assert "config.json: rope_scaling.mscale_all_dim = 0.707 of its own scaling" in caught.value.message
    assert caught.value.message.endswith("; leave config.rope_scaling unset")
    assert caught.value.violations[0].field == "config.rope_scaling"
    assert apply_rope_scaling(lite, RopeScaling(RopeScalingType.MODEL)) == lite
    scaled = apply_rope_scaling(plain, RopeScaling(kind, factor=8))
    assert (scaled.ropes[0].scaling, scaled.score_scale) == (kind, 192**-0.5)


def test_what_places_entries_is_never_quantized(tmp_path: Path) -> None:
    files = open_model(str(make_tiny_family(tmp_path, "deepseek3")))
    storage = Storage(ComputeDtype.BFLOAT16, WeightQuant.INT4, 32)
    kept = {name for name, info in files.tensors.items() if len(info.shape) == 2 and storage.quantizes(name) is None}
    assert kept == {f"layers.{i}.k_spread" for i in range(3)} | {f"layers.{i}.router" for i in (1, 2)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_heads_of_any_storage_are_those_of_the_file(dtype: torch.dtype, tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path, "deepseek2")
    weights = path / "model.safetensors"
    stored = {name: tensor.to(dtype) for name, tensor in load_file(weights).items()}
    save_file(stored, weights, metadata={"format": "pt"})
    made = load_weights(open_model(str(path)), dtype, torch.device("cpu"), lambda *_: None)
    joined = stored[KV].unflatten(0, (4, 36))
    k, v = (made[f"layers.1.{name}"].unflatten(0, (4, 32)) for name in "kv")
    assert torch.equal(k[:, 12:], joined[:, :20])
    assert torch.equal(v[:, :16], joined[:, 20:])
    assert not k[:, :12].any()
    assert not v[:, 16:].any()
    shared = torch.arange(12, dtype=dtype)
    spread = (made["layers.1.k_spread"] @ shared).unflatten(0, (4, 32))
    pairs = torch.cat([shared[0::2], shared[1::2]])
    assert torch.equal(spread, torch.cat([pairs, torch.zeros(20, dtype=dtype)]).expand(4, 32))


@pytest.mark.parametrize("name", ["deepseek2 biases", "deepseek3", "glm4 moe lite", "minicpm3"])
def test_what_a_file_holds_is_counted_without_padding(name: str, tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path, name)
    files, stored = open_model(str(path)), load_file(path / "model.safetensors").values()
    assert files.num_parameters == sum(each.numel() for each in stored)
    assert files.weight_bytes == sum(each.nbytes for each in stored)
    steps: list[int] = []
    made = load_weights(files, torch.float32, torch.device("cpu"), lambda _, done, total: steps.append(done))
    assert files.num_held == sum(each.numel() for each in made.values()) > files.num_parameters
    assert steps == sorted(steps)
    assert steps[-1] == files.weight_bytes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(KV), f"DeepseekV3ForCausalLM of config.json needs are absent: {KV}"),
        (lambda tensors: tensors.update({KV: tensors[KV][:-1].clone()}), f"tensor {KV} is [143, 24], but config.json"),
        (
            lambda tensors: tensors.update({KV: tensors[KV].to(torch.int8)}),
            f"tensor {KV} is I8; supported are F64, F32",
        ),
        (lambda tensors: tensors.update(OWN), f"tensor {QUERIES} stands beside {OWN_KEYS}: heads of a layer may be"),
        (
            lambda tensors: tensors.update(OWN) or tensors.pop(KV),
            f"tensor {QUERIES} stands beside {OWN_KEYS}: heads of a layer may be",
        ),
    ],
)
def test_heads_that_cannot_be_arranged_are_refused(
    change: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path
) -> None:
    path = make_tiny_family(tmp_path, "deepseek3")
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel) as caught:
        open_model(str(path))
    assert words in caught.value.message


def test_a_bias_that_the_config_does_not_name_keeps_its_name(tmp_path: Path) -> None:
    path, name = make_tiny_family(tmp_path, "deepseek3"), "model.layers.1.self_attn.o_proj.bias"
    save_file({**load_file(path / "model.safetensors"), name: torch.zeros(64)}, path / "model.safetensors")
    with pytest.raises(BadModel, match=name):
        open_model(str(path))


def test_a_bias_that_is_absent_has_its_name_in_files(tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path, "deepseek2 biases")
    biases = {f"model.layers.{layer}.self_attn.o_proj.bias" for layer in range(2)}
    tensors = load_file(path / "model.safetensors")
    save_file({name: each for name, each in tensors.items() if name not in biases}, path / "model.safetensors")
    with pytest.raises(BadModel, match=r"are absent: model\.layers\.0\.self_attn\.o_proj\.bias") as caught:
        open_model(str(path))
    assert "heads" not in caught.value.message


def test_layers_that_predict_further_ids_are_left_out(tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path, "deepseek3")
    tensors = load_file(path / "model.safetensors")
    last = {name: each for name, each in tensors.items() if name.startswith("model.layers.2.")}
    further = {name.replace("layers.2.", "layers.3."): each.clone() for name, each in last.items()}
    further["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128)
    save_file({**tensors, **further}, path / "model.safetensors", metadata={"format": "pt"})
    files = open_model(str(path))
    assert files.spec.num_layers == 3
    assert any("predict further ids" in warning for warning in files.warnings)
