"""Granite 3, with experts or without, dense ones of Granite 4, MiniCPM: factors of embeddings, branches and logits."""

from __future__ import annotations

import math
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.latent import decoder_with_latents
from headrace_engine.models.families.latent_heads import LATENT_NAMES, heads_arranged
from headrace_engine.models.families.llama import with_biases
from headrace_engine.models.families.mixtures.fields import gguf_experts, read_experts, with_experts
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec

_MINICPM3_EPS, _MINICPM3_EMBEDDING, _MINICPM3_DEPTH, _MINICPM3_BASE = 1e-5, 12.0, 1.4, 256
_ATTENTION = ("attention", "full_attention")
"""Names of the layers that are supported of hybrid models."""


def _granite(config: ConfigFields) -> DecoderSpec:
    return _scaled(config, with_biases(decoder_from_config(config, "GraniteForCausalLM"), config))


def _granite_moe(config: ConfigFields) -> DecoderSpec:
    return _mixture(config, "GraniteMoeForCausalLM", 0)


def _granite_moe_shared(config: ConfigFields) -> DecoderSpec:
    shared = config.integer("shared_intermediate_size", 0, minimum=0)
    return _mixture(config, "GraniteMoeSharedForCausalLM", shared)


def _mixture(config: ConfigFields, architecture: str, shared: int) -> DecoderSpec:
    has_bias = config.flag("attention_bias", False)
    spec = replace(decoder_from_config(config, architecture), qkv_bias=has_bias, output_bias=has_bias)
    experts = read_experts(config, count="num_local_experts", width="intermediate_size", normalised=True)
    return with_experts(_scaled(config, spec), replace(experts, shared_width=shared))


def _granite4(config: ConfigFields) -> DecoderSpec:
    """Read the config of a hybrid model all of whose layers are attention and a dense MLP."""
    check_absent(config, ("num_local_experts", "mlp_bias"))
    kinds = config.get("layer_types")
    spec = decoder_from_config(config, "GraniteMoeHybridForCausalLM")
    if not isinstance(kinds, list) or len(kinds) != spec.num_layers or any(kind not in _ATTENTION for kind in kinds):
        text = f"must list {spec.num_layers} of {', '.join(_ATTENTION)}: others are not supported"
        raise config.error("layer_types", text)
    if config.text("position_embedding_type", "") != "rope":
        raise config.error("position_embedding_type", "is not supported; supported is rope")
    has_bias = config.flag("attention_bias", False)
    wide = config.integer("shared_intermediate_size")
    return _scaled(config, replace(spec, intermediate_size=wide, qkv_bias=has_bias, output_bias=has_bias))


def _minicpm(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("num_experts", "sparse_config"))
    if not config.flag("use_mup", True):
        raise config.error("use_mup", "is not supported; supported is true")
    spec, has_bias = decoder_from_config(config, "MiniCPMForCausalLM", tied=True), config.flag("attention_bias", False)
    (rope,) = spec.ropes
    if rope.long_factors and spec.max_length > rope.original_max_length:
        # Its code makes the table for the model's length at once, whatever the length of a sequence.
        rope = replace(rope, frequency_factors=rope.long_factors)
    return replace(
        spec,
        ropes=(rope,),
        qkv_bias=has_bias,
        output_bias=has_bias,
        embedding_scale=config.number("scale_emb", 1.0),
        branch_scale=config.number("scale_depth", 1.0) / math.sqrt(spec.num_layers),
        logit_scale=config.number("dim_model_base", 1.0) / spec.hidden_size,
    )


def _minicpm3(config: ConfigFields) -> DecoderSpec:
    if config.get("v_head_dim") is None:
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        config = config.replacing({"v_head_dim": hidden // heads})
    spec = decoder_with_latents(config, "MiniCPM3ForCausalLM", tied=True)
    depth, base = math.sqrt(spec.num_layers), spec.hidden_size
    if not config.has("scale_depth"):  # A null is no factor, but that there is none.
        depth = _MINICPM3_DEPTH
    if not config.has("dim_model_base"):
        base = _MINICPM3_BASE
    return replace(
        spec,
        mlp_bias=config.flag("mlp_bias", False),
        norm_eps=config.number("rms_norm_eps", _MINICPM3_EPS),
        embedding_scale=config.number("scale_emb", _MINICPM3_EMBEDDING),
        branch_scale=config.number("scale_depth", depth) / math.sqrt(spec.num_layers),
        logit_scale=config.number("dim_model_base", base) / spec.hidden_size,
    )


def _scaled(config: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    return replace(
        spec,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        branch_scale=config.number("residual_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
        logit_scale=1 / config.number("logits_scaling", 1.0),
    )


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count",))
    return _gguf_scaled(metadata, decoder_from_metadata(metadata, "granite", hints))


def _gguf_moe(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = _gguf_scaled(metadata, decoder_from_metadata(metadata, "granitemoe", hints))
    shared = metadata.integer("expert_shared_feed_forward_length", 0, minimum=0)
    experts = gguf_experts(metadata, spec, normalised=True, width="feed_forward_length")
    return with_experts(spec, replace(experts, shared_width=shared))


def _gguf_scaled(metadata: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    check_absent(metadata, ("attn_logit_softcapping", "final_logit_softcapping"))
    scale = None if metadata.get("attention.scale") in (None, 0, 0.0) else metadata.number("attention.scale")
    return replace(
        spec,
        embedding_scale=metadata.number("embedding_scale", 1.0),
        branch_scale=metadata.number("residual_scale", 1.0),
        attention_scale=scale,
        logit_scale=1 / metadata.number("logit_scale", 1.0),
    )


GRANITE = Family(
    from_config={"GraniteForCausalLM": _granite},
    from_metadata={"granite": _gguf},
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
)

MINICPM = Family(from_config={"MiniCPMForCausalLM": _minicpm}, from_metadata={})

MINICPM3 = Family(
    from_config={"MiniCPM3ForCausalLM": _minicpm3},
    from_metadata={},
    hf=FileLayout(LATENT_NAMES),
    apart=heads_arranged,
)

_JOINED = {
    "gate": "model.layers.{i}.shared_mlp.input_linear.weight",
    "up": "model.layers.{i}.shared_mlp.input_linear.weight",
    "down": "model.layers.{i}.shared_mlp.output_linear.weight",
}

GRANITE4 = Family(
    from_config={"GraniteMoeHybridForCausalLM": _granite4},
    from_metadata={},
    hf=FileLayout({**HF_NAMES, **_JOINED}),
)

_EXPERTS = "model.layers.{i}.block_sparse_moe"
_MOE = {
    "router": f"{_EXPERTS}.router.layer.weight",
    "experts.gate": f"{_EXPERTS}.input_linear.weight",
    "experts.up": f"{_EXPERTS}.input_linear.weight",
    "experts.down": f"{_EXPERTS}.output_linear.weight",
    **{f"shared_{name}": tensor for name, tensor in _JOINED.items()},
}

GRANITE_MOE = Family(
    from_config={"GraniteMoeForCausalLM": _granite_moe, "GraniteMoeSharedForCausalLM": _granite_moe_shared},
    from_metadata={"granitemoe": _gguf_moe},
    hf=FileLayout({**HF_NAMES, **_MOE}),
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
)
