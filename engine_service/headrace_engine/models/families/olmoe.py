"""OLMoE: experts in all layers, and norms of all heads of queries and keys together."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.mixtures import gguf_experts, read_experts, with_experts
from headrace_engine.models.spec import DecoderSpec, QkNorm

_EPS = 1e-5


def _olmoe(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("clip_qkv",))
    spec, has_bias = decoder_from_config(config, "OlmoeForCausalLM"), config.flag("attention_bias", False)
    spec = replace(spec, qkv_bias=has_bias, output_bias=has_bias, norm_eps=config.number("rms_norm_eps", _EPS))
    normalised = config.flag("norm_topk_prob", False)
    experts = read_experts(config, count="num_experts", width="intermediate_size", normalised=normalised)
    return with_experts(replace(spec, qk_norm=QkNorm.WHOLE), experts)


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attention.scale", "attention.clamp_kqv"))
    spec = replace(decoder_from_metadata(metadata, "olmoe", hints), qk_norm=QkNorm.WHOLE)
    return with_experts(spec, gguf_experts(metadata, spec, normalised=False, width="feed_forward_length"))


OLMOE = Family(from_config={"OlmoeForCausalLM": _olmoe}, from_metadata={"olmoe": _gguf})
