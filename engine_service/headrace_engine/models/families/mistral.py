"""Mistral and Ministral: windows in all layers or in those that the config lists; Ministral 3 scales queries."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.llama import OTHER_MODELS
from headrace_engine.models.layout import GGUF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec, QueryScaling

_WINDOW = 4_096
_MINISTRAL3_HEAD_DIM, _MINISTRAL3_EPS = 128, 1e-5


def _mistral(config: ConfigFields) -> DecoderSpec:
    """Read the config: a null window means none; an absent one means that of Mistral 7B."""
    check_absent(config, ("layer_types",))
    return _windowed(config, decoder_from_config(config, "MistralForCausalLM"))


def _ministral(config: ConfigFields) -> DecoderSpec:
    return _windowed(config, decoder_from_config(config, "MinistralForCausalLM"))


def _windowed(config: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    everywhere = [True] * spec.num_layers
    return replace(spec, layers=windowed_layers(config, spec.num_layers, everywhere, _WINDOW))


def _ministral3(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("layer_types",))
    spec = decoder_from_config(config, "Ministral3ForCausalLM", head_dim=_MINISTRAL3_HEAD_DIM)
    spec = replace(spec, norm_eps=config.number("rms_norm_eps", _MINISTRAL3_EPS))
    if config.get("sliding_window") is not None:
        spec = _windowed(config, spec)
    parameters = config.table("rope_parameters")
    if parameters is None:
        raise config.error("rope_parameters", "must be an object with llama_4_scaling_beta")
    beta = parameters.number("llama_4_scaling_beta")
    original = parameters.integer("original_max_position_embeddings", spec.max_length)
    return replace(spec, query_scaling=QueryScaling(beta, original))


def _ministral3_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, [name for name in OTHER_MODELS if name != "attention.temperature_scale"])
    spec = decoder_from_metadata(metadata, "mistral3", hints)
    if metadata.get("attention.temperature_scale") in (None, 0, 0.0):
        return spec
    original = metadata.integer("rope.scaling.original_context_length", spec.max_length)
    return replace(spec, query_scaling=QueryScaling(metadata.number("attention.temperature_scale"), original))


MISTRAL = Family(
    from_config={
        "MistralForCausalLM": _mistral,
        "MinistralForCausalLM": _ministral,
        "Ministral3ForCausalLM": _ministral3,
    },
    from_metadata={"mistral3": _ministral3_gguf},
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
)
