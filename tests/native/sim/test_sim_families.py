"""Families that differ in what the device computes, on the simulated device beside the cpu backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headrace_engine.backends.cuda.mixtures import check_experts
from headrace_engine.backends.planned import open_planned
from headrace_engine.config import ActivationQuant, WeightQuant
from headrace_engine.errors import InvalidArgument
from native.sim_runs import SHAPE, compare_with_cpu, plan_for
from support.models.tiny_models import make_tiny_family

pytestmark = pytest.mark.usefixtures("simulator")


QUANTS = {"weight_quant": WeightQuant, "activation_quant": ActivationQuant}
_TWO_HEADS = {"num_attention_heads": 2}
_OWN_KEYS = {"num_attention_heads": 2, "num_key_value_heads": 2}
DIFFERENT: dict[str, dict[str, object]] = {
    "qwen3": {},
    "smollm3": {"no_rope_layers": [1, 0], "num_hidden_layers": 2},
    "ministral3": {},
    "gemma2": {},
    "gemma3": {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    "granite": {},
    "glm4": {},
    "olmo2": {},
    "command r7b": {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    "stablelm": {"num_attention_heads": 2},
    "phi2": {},
    "qwen2 moe": {},
    "qwen3 moe": {},
    "mixtral": {"num_experts_per_tok": 4},
    "granite moe shared": {},
    "gpt oss": {"num_experts_per_tok": 4, "num_hidden_layers": 2},
    **{name: {"num_hidden_layers": 1} for name in ("command r biases", "gemma", "glm")},
    **{name: {**_TWO_HEADS, "num_hidden_layers": 1} for name in (
        "falcon", "falcon in sequence", "granite moe", "neox", "neox in sequence", "olmoe", "stablelm parallel",
        "starcoder2 window",
    )},
    "falcon2": {**_TWO_HEADS, "num_kv_heads": 1, "num_hidden_layers": 1},
    "falcon 40b": {"hidden_size": 256, "num_hidden_layers": 1},
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    "olmo3": {},
    "deepseek2": {**_OWN_KEYS, "qk_nope_head_dim": 52, "v_head_dim": 64, "num_hidden_layers": 2},
    "deepseek3": {
        **_OWN_KEYS, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_hidden_layers": 2,
    },
    "glm4 moe lite": {**_OWN_KEYS, "qk_nope_head_dim": 32, "num_hidden_layers": 3},
    "minicpm3": {**_OWN_KEYS, "qk_nope_head_dim": 68},
}  # fmt: skip
"""Settings of each family for which heads have a size that the device takes."""

_BY_ROW = {"weight_quant": WeightQuant.INT8, "weight_quant_group_size": 0}
CODES: dict[str, dict[str, object]] = {
    "int8": {"weight_quant": WeightQuant.INT8},
    "int8 by row": _BY_ROW,
    "int8 by row, bytes": {**_BY_ROW, "activation_quant": ActivationQuant.INT8},
    "int4": {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_scores_are_those_of_the_cpu_backend(name: str, tmp_path: Path) -> None:
    shape = {field: size for field, size in SHAPE.items() if field != "head_dim" or not name.startswith("falcon")}
    path = make_tiny_family(tmp_path, name, vocab_size=256, **{**shape, **DIFFERENT[name]})
    compare_with_cpu(plan_for(path), seeds=1, tokens=4)


@pytest.mark.parametrize("name", CODES)
def test_codes_of_latents_have_the_scores_of_the_cpu_backend(name: str, tmp_path: Path) -> None:
    sizes = {"qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "q_lora_rank": 48, "kv_lora_rank": 32}
    path = make_tiny_family(tmp_path, "minicpm3", vocab_size=256, **{**SHAPE, **_OWN_KEYS, **sizes})
    compare_with_cpu(plan_for(path, **CODES[name]), seeds=1, tokens=4)


@pytest.mark.parametrize("field", ["weight_quant", "activation_quant"])
def test_quantized_experts_are_refused_by_field(field: str, tmp_path: Path) -> None:
    plan = plan_for(make_tiny_family(tmp_path, "mixtral", vocab_size=256, **SHAPE))
    with pytest.raises(InvalidArgument, match=f"config.{field} = INT8: the cuda backend takes mixtures"):
        check_experts(replace(plan, **{field: QUANTS[field].INT8}), open_planned(plan).spec)


def test_sizes_that_grouped_products_do_not_take_are_refused(tmp_path: Path) -> None:
    plan = plan_for(make_tiny_family(tmp_path, "qwen3 moe", vocab_size=256, moe_intermediate_size=100, **SHAPE))
    with pytest.raises(InvalidArgument, match="has experts of a width of 100; the cuda backend takes multiples of 8"):
        check_experts(plan, open_planned(plan).spec)
