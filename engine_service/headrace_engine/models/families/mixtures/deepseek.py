"""DeepSeek-V2 and V3, models of their shapes (Moonlight), GLM-4.7-Flash: latent attention, and experts in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_engine.errors import shown
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, check_not_null
from headrace_engine.models.families.latent import decoder_with_latents, latents_from_metadata
from headrace_engine.models.families.latent_heads import (
    LATENT_GGUF_NAMES,
    LATENT_NAMES,
    gguf_heads_arranged,
    heads_arranged,
)
from headrace_engine.models.families.mixtures.fields import (
    SIGMOID,
    SOFTMAX,
    behind,
    gating_function,
    gguf_experts,
    read_experts,
    with_experts,
    with_groups,
)
from headrace_engine.models.layout import FileLayout
from headrace_engine.models.spec import DecoderSpec, ExpertsSpec

_V2, _V3, _GLM = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"
_V2_SHARED, _V2_DENSE = 2, 0
_V3_GROUPS, _V3_GROUPS_USED, _V3_SCALE, _V3_DENSE = 8, 4, 2.5, 3
_GLM_SCALE, _GLM_DENSE, _GLM_EPS = 1.8, 1, 1e-5
_KINDS = ("dense", "sparse")
_GROUPS = {(60, 160): (8, 3), (61, 256): (8, 4)}
"""Groups of experts and those of a token where GGUF files name none, by the numbers of layers and of experts: old files
of DeepSeek-V2, and of V3 and R1. Files of other models have one group then."""
_CORRECTION = ".exp_probs_b.bias"
_NOT_NULL = ("n_shared_experts", "rope_interleave", "routed_scaling_factor")


def _deepseek2(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("norm_topk_prob",))
    check_not_null(config, ("first_k_dense_replace",))
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.error("topk_method", "is not supported; supported are greedy, group_limited_greedy")
    _check_only(config, "scoring_func", "softmax")
    spec = replace(decoder_with_latents(config, _V2), mlp_bias=config.flag("mlp_bias", False))
    experts = _experts(config, spec, normalised=False, scale=1.0)
    if method != "greedy":
        experts = with_groups(config, experts, None, None)
    shared = config.integer("n_shared_experts", _V2_SHARED)
    return behind(spec, experts, shared, config, "first_k_dense_replace", _V2_DENSE)


def _deepseek3(config: ConfigFields) -> DecoderSpec:
    check_not_null(config, ("first_k_dense_replace", "n_group", "topk_group"))
    spec = decoder_with_latents(config, _V3)
    experts = with_groups(config, _corrected(config, spec, scale=_V3_SCALE), _V3_GROUPS, _V3_GROUPS_USED)
    return behind(spec, experts, config.integer("n_shared_experts", 1), config, "first_k_dense_replace", _V3_DENSE)


def _glm_lite(config: ConfigFields) -> DecoderSpec:
    check_not_null(config, ("norm_topk_prob",))
    # The two are names of one setting.
    if config.get("head_dim") not in (None, rotating := config.get("qk_rope_head_dim")):
        raise config.error("head_dim", f"contradicts qk_rope_head_dim = {shown(rotating)}")
    spec = replace(decoder_with_latents(config, _GLM), norm_eps=config.number("rms_norm_eps", _GLM_EPS))
    experts = with_groups(config, _corrected(config, spec, scale=_GLM_SCALE), 1, 1)
    shared = config.integer("n_shared_experts", 1) * experts.width
    return with_experts(spec, replace(experts, shared_width=shared), _sparse_layers(config, spec.num_layers))


def _corrected(config: ConfigFields, spec: DecoderSpec, *, scale: float) -> ExpertsSpec:
    _check_only(config, "topk_method", "noaux_tc")
    _check_only(config, "scoring_func", "sigmoid")
    # DeepSeek-V3 takes a null for false.
    normalised = config.flag("norm_topk_prob", not config.has("norm_topk_prob"))
    return replace(_experts(config, spec, normalised=normalised, scale=scale), sigmoid=True, corrected=True)


def _experts(config: ConfigFields, spec: DecoderSpec, *, normalised: bool, scale: float) -> ExpertsSpec:
    """Read the experts, and check settings of the whole decoder that these configs have."""
    check_not_null(config, _NOT_NULL)
    if config.integer("moe_layer_freq", 1) != 1:
        raise config.error("moe_layer_freq", "is not supported; supported is 1")
    if not config.flag("rope_interleave", True):
        raise config.error("rope_interleave", "is not supported; supported is true")
    experts = read_experts(config, count="n_routed_experts", width="moe_intermediate_size", normalised=normalised)
    return replace(experts, scale=config.number("routed_scaling_factor", scale))


def _check_only(config: ConfigFields, name: str, only: str) -> None:
    if config.text(name, only) != only:
        raise config.error(name, f"is not supported; supported is {only}")


def _sparse_layers(config: ConfigFields, count: int) -> Sequence[bool]:
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        if config.integer("first_k_dense_replace", _GLM_DENSE) != _GLM_DENSE:
            raise config.error("first_k_dense_replace", "is not supported; supported is 1, or mlp_layer_types")
        kinds = ["dense"] * _GLM_DENSE + ["sparse"] * (count - _GLM_DENSE)
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in _KINDS for kind in kinds):
        raise config.error("mlp_layer_types", f"must list {count} of {', '.join(_KINDS)}")
    if "sparse" not in kinds:
        raise config.error("mlp_layer_types", "leaves no layer with experts")
    return [kind == "sparse" for kind in kinds]


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attention.scale", "attention.temperature_scale"))
    spec = latents_from_metadata(metadata, "deepseek2", hints)
    predicting = metadata.integer("nextn_predict_layers", 0, minimum=0, maximum=spec.num_layers - 1)
    spec = replace(spec, layers=spec.layers[: spec.num_layers - predicting])
    # Files of DeepSeek-V2 and first ones of GLM-4.7-Flash do not name the function.
    corrected = any(name.endswith(_CORRECTION) for name in hints.names)
    is_sigmoid = gating_function(metadata, SIGMOID if corrected else SOFTMAX, (SOFTMAX, SIGMOID)) == SIGMOID
    groups = _GROUPS.get((spec.num_layers, metadata.integer("expert_count")), (1, 1))
    experts = gguf_experts(
        metadata, spec, normalised=False, scaled=True, sigmoid=is_sigmoid, corrected=is_sigmoid, groups=groups
    )
    if experts.normalised and not is_sigmoid:
        raise metadata.error("expert_weights_norm", "is not supported with softmax (expert_gating_func)")
    shared = metadata.integer("expert_shared_count", 0, minimum=0)
    return behind(spec, experts, shared, metadata, "leading_dense_block_count", 0)


_SHARED = {
    f"shared_{name}": f"model.layers.{{i}}.mlp.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")
}

DEEPSEEK = Family(
    from_config={_V2: _deepseek2, _V3: _deepseek3, _GLM: _glm_lite},
    from_metadata={"deepseek2": _gguf},
    hf=FileLayout({**LATENT_NAMES, **_SHARED}, interleaved=True),
    gguf=FileLayout(LATENT_GGUF_NAMES, interleaved=True),
    apart=heads_arranged,
    gguf_apart=gguf_heads_arranged,
)
