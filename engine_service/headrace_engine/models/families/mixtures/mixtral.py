"""Mixtral, OLMoE and Phi-3.5-MoE: experts in all layers. GGUF files of Mixtral are of the architecture llama."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, same_layers
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.mixtures.fields import gguf_experts, read_experts, with_experts
from headrace_engine.models.layout import HF_NAMES, FileLayout
from headrace_engine.models.rope.reading import scaling_table, scaling_type, scaling_type_name
from headrace_engine.models.spec import DecoderSpec, NormKind, QkNorm, RopeSpec

_EPS = 1e-5
_PHIMOE_THETA, _PHIMOE_JITTER, _PHIMOE_USED = 1_000_000.0, 0.01, 2
_SCALINGS = ("longrope", "su")


def _mixtral(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "MixtralForCausalLM")
    spec = replace(spec, norm_eps=config.number("rms_norm_eps", _EPS))
    if config.get("sliding_window") is not None:
        spec = replace(spec, layers=same_layers(spec.num_layers, config.integer("sliding_window")))
    experts = read_experts(config, count="num_local_experts", width="intermediate_size", normalised=True)
    return with_experts(spec, experts)


def _olmoe(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("clip_qkv",))
    spec, has_bias = decoder_from_config(config, "OlmoeForCausalLM"), config.flag("attention_bias", False)
    spec = replace(spec, qkv_bias=has_bias, output_bias=has_bias, norm_eps=config.number("rms_norm_eps", _EPS))
    normalised = config.flag("norm_topk_prob", False)
    experts = read_experts(config, count="num_experts", width="intermediate_size", normalised=normalised)
    return with_experts(replace(spec, qk_norm=QkNorm.WHOLE), experts)


def _olmoe_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attention.scale", "attention.clamp_kqv"))
    spec = replace(decoder_from_metadata(metadata, "olmoe", hints), qk_norm=QkNorm.WHOLE)
    return with_experts(spec, gguf_experts(metadata, spec, normalised=False, width="feed_forward_length"))


def _phimoe(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "PhiMoEForCausalLM", theta=_PHIMOE_THETA)
    spec = replace(spec, norm_eps=config.number("rms_norm_eps", _EPS), norm=NormKind.LAYER, norm_bias=True)
    has_bias, head_bias = config.flag("attention_bias", False), config.flag("lm_head_bias", False)
    rope = _with_mscale(config, spec.ropes[0])
    spec = replace(spec, qkv_bias=has_bias, output_bias=has_bias, head_bias=head_bias, ropes=(rope,))
    if config.get("sliding_window") is not None:
        spec = replace(spec, layers=same_layers(spec.num_layers, config.integer("sliding_window")))
    experts = read_experts(config, count="num_local_experts", width="intermediate_size", normalised=False)
    if config.integer("num_experts_per_tok", _PHIMOE_USED) != _PHIMOE_USED:
        raise config.error("num_experts_per_tok", f"is not supported; supported is {_PHIMOE_USED}")
    threshold = 2 * config.number("router_jitter_noise", _PHIMOE_JITTER)
    return with_experts(spec, replace(experts, mixer_threshold=threshold))


def _with_mscale(config: ConfigFields, rope: RopeSpec) -> RopeSpec:
    """Return the embedding with the factor of cosines and sines that configs of Phi-3.5-MoE name."""
    scaling = scaling_table(config)
    if scaling is None or (kind := scaling_type(scaling)) == "default":
        return rope
    if kind not in _SCALINGS:
        text = f"is not supported for this architecture; supported are {', '.join(_SCALINGS)}"
        raise scaling.error(scaling_type_name(scaling), text)
    factor = scaling.number("short_mscale")
    if scaling.number("long_mscale") != factor:
        raise scaling.error("long_mscale", f"must equal short_mscale, {factor:g}: others are not supported")
    return replace(rope, attention_factor=factor)


_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{e}"
_HF = {
    "router": "model.layers.{i}.block_sparse_moe.gate.weight",
    "experts.gate": f"{_EXPERT}.w1.weight",
    "experts.up": f"{_EXPERT}.w3.weight",
    "experts.down": f"{_EXPERT}.w2.weight",
}

MIXTRAL = Family(from_config={"MixtralForCausalLM": _mixtral}, from_metadata={}, hf=FileLayout({**HF_NAMES, **_HF}))
OLMOE = Family(from_config={"OlmoeForCausalLM": _olmoe}, from_metadata={"olmoe": _olmoe_gguf})
PHIMOE = Family(
    from_config={"PhiMoEForCausalLM": _phimoe, "PhimoeForCausalLM": _phimoe},
    from_metadata={},
    hf=FileLayout({**HF_NAMES, **_HF}),
)
