"""Qwen2-MoE and Qwen3-MoE: experts in all layers or in those that the config lists; Qwen2's share one with a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, same_layers
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.mixtures.fields import gguf_experts, read_experts, with_experts
from headrace_engine.models.layout import HF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec, ExpertsSpec, QkNorm

_WINDOW = 4_096
_MAX_WINDOW_LAYERS = 28


def _qwen2(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "Qwen2MoeForCausalLM")
    if config.flag("use_sliding_window", False):
        last = config.integer("max_window_layers", _MAX_WINDOW_LAYERS, minimum=0)
        slides = [index % 2 == 0 and index < last for index in range(spec.num_layers)]
        spec = replace(spec, layers=windowed_layers(config, spec.num_layers, slides, _WINDOW))
    experts = replace(_experts(config), shared_width=config.integer("shared_expert_intermediate_size"))
    spec = replace(spec, qkv_bias=config.flag("qkv_bias", True))
    return with_experts(spec, replace(experts, shared_gate=True), _sparse_layers(config, spec.num_layers))


def _qwen3(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "Qwen3MoeForCausalLM")
    has_bias = config.flag("attention_bias", False)
    if config.flag("use_sliding_window", False):
        spec = replace(spec, layers=same_layers(spec.num_layers, config.integer("sliding_window", _WINDOW)))
    spec = replace(spec, qkv_bias=has_bias, output_bias=has_bias, qk_norm=QkNorm.HEAD)
    return with_experts(spec, _experts(config), _sparse_layers(config, spec.num_layers))


def _experts(config: ConfigFields) -> ExpertsSpec:
    """Read the experts, whose number newer versions of transformers write by another name."""
    count = "num_experts" if config.get("num_local_experts") is None else "num_local_experts"
    normalised = config.flag("norm_topk_prob", False)
    return read_experts(config, count=count, width="moe_intermediate_size", normalised=normalised)


def _sparse_layers(config: ConfigFields, count: int) -> Sequence[bool]:
    period, dense = config.integer("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(each) is not int or not 0 <= each < count for each in dense):
        raise config.error("mlp_only_layers", f"must list layers from 0 to {count - 1}")
    sparse = [index not in dense and (index + 1) % period == 0 for index in range(count)]
    if not any(sparse):
        raise config.error("decoder_sparse_step", "leaves no layer with experts")
    return sparse


def _qwen2_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attention.scale",))
    spec = decoder_from_metadata(metadata, "qwen2moe", hints)
    shared = metadata.integer("expert_shared_feed_forward_length", spec.intermediate_size)
    experts = gguf_experts(metadata, spec, normalised=False)
    return with_experts(spec, replace(experts, shared_width=shared, shared_gate=True))


def _qwen3_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attention.scale",))
    spec = replace(decoder_from_metadata(metadata, "qwen3moe", hints), qk_norm=QkNorm.HEAD)
    return with_experts(spec, gguf_experts(metadata, spec, normalised=True))


_SHARED = "model.layers.{i}.mlp.shared_expert"
_HF = {f"shared_{name}": f"{_SHARED}.{name}_proj.weight" for name in ("gate", "up", "down")}

QWEN_MOE = Family(
    from_config={"Qwen2MoeForCausalLM": _qwen2, "Qwen3MoeForCausalLM": _qwen3},
    from_metadata={"qwen2moe": _qwen2_gguf, "qwen3moe": _qwen3_gguf},
    hf=FileLayout({**HF_NAMES, **_HF, "shared_score": f"{_SHARED}_gate.weight"}),
)
