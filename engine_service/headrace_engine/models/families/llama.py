"""Llama, and models that compute the same: SmolLM2, Mistral."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import (
    Family,
    GgufHints,
    check_absent,
    decoder_from_config,
    decoder_from_metadata,
    same_layers,
)
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES
from headrace_engine.models.spec import DecoderSpec

_MISTRAL_WINDOW = 4_096
_OTHER_MODELS = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
)
"""Metadata of models that are also named "llama" but compute something else."""


def _llama(config: ConfigFields) -> DecoderSpec:
    has_bias = config.flag("attention_bias", False)
    spec = decoder_from_config(config, "LlamaForCausalLM")
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=config.flag("mlp_bias", False))


def _mistral(config: ConfigFields) -> DecoderSpec:
    """Read Mistral's config: a null window means none; an absent one means that of Mistral 7B."""
    check_absent(config, ("layer_types",))
    spec = decoder_from_config(config, "MistralForCausalLM")
    if config.has("sliding_window") and config.get("sliding_window") is None:
        return spec
    return replace(spec, layers=same_layers(spec.num_layers, config.integer("sliding_window", _MISTRAL_WINDOW)))


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, _OTHER_MODELS)
    return decoder_from_metadata(metadata, "llama", hints)


LLAMA = Family(
    from_config={"LlamaForCausalLM": _llama, "MistralForCausalLM": _mistral},
    from_metadata={"llama": _gguf},
    hf_names=HF_NAMES,
    gguf_names=GGUF_NAMES,
    interleaved_in_gguf=True,
)
