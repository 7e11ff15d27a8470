"""GLM-4.5, dots.llm1, MiniMax-M2 and ERNIE 4.5 with experts, which are chosen by their weights plus a correction.

The weights are sigmoids of scores, but softmax in ERNIE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.llama import ERNIE
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
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec, QkNorm

_GLM, _DOTS, _MINIMAX = "Glm4MoeForCausalLM", "Dots1ForCausalLM", "MiniMaxM2ForCausalLM"
_GLM_EPS, _GLM_ROTATING = 1e-5, 0.5
_DOTS_WINDOW, _DOTS_FULL_LAYERS = 4_096, 62
_ERNIE_MOE = "Ernie4_5_MoeForCausalLM"
_ERNIE_FIRST, _ERNIE_SHARED, _ERNIE_LEAST = 1, 2, 1e-12
_MINIMAX_HEAD_DIM, _MINIMAX_THETA = 128, 5_000_000.0
_ONE_GROUP = (1, 1)


def _glm(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, _GLM, rotating=_GLM_ROTATING)
    norm = QkNorm.HEAD if config.flag("use_qk_norm", False) else QkNorm.NONE
    eps, has_bias = config.number("rms_norm_eps", _GLM_EPS), config.flag("attention_bias", False)
    spec = replace(spec, qk_norm=norm, norm_eps=eps, qkv_bias=has_bias)
    return _with_experts(config, spec, normalised=True, dense=1)


def _dots(config: ConfigFields) -> DecoderSpec:
    spec, has_bias = decoder_from_config(config, _DOTS), config.flag("attention_bias", False)
    first = config.integer("max_window_layers", _DOTS_FULL_LAYERS, minimum=0)
    slides = [index >= first for index in range(spec.num_layers)]
    layers = windowed_layers(config, spec.num_layers, slides, _DOTS_WINDOW)
    spec = replace(spec, layers=layers, qk_norm=QkNorm.HEAD, qkv_bias=has_bias, output_bias=has_bias)
    return _with_experts(config, spec, normalised=False, dense=0)


def _with_experts(config: ConfigFields, spec: DecoderSpec, *, normalised: bool, dense: int) -> DecoderSpec:
    """Return the spec with experts behind the first layers, `dense` where the config does not say how many."""
    normalised = config.flag("norm_topk_prob", normalised)
    experts = read_experts(config, count="n_routed_experts", width="moe_intermediate_size", normalised=normalised)
    shared, scale = config.integer("n_shared_experts", 1), config.number("routed_scaling_factor", 1.0)
    experts = with_groups(config, replace(experts, scale=scale, sigmoid=True, corrected=True), 1, 1)
    return behind(spec, experts, shared, config, "first_k_dense_replace", dense)


def _minimax(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("shared_intermediate_size",))
    for name, only in (("scoring_func", "sigmoid"), ("qk_norm_type", "per_layer")):
        if config.text(name, only) != only:
            raise config.error(name, f"is not supported; supported is {only}")
    for name in ("use_qk_norm", "use_routing_bias"):
        if not config.flag(name, True):
            raise config.error(name, "is not supported; supported is true")
    kinds = config.get("attn_type_list")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != 1 for kind in kinds)):
        raise config.error("attn_type_list", "is not supported; supported are layers of type 1")
    if config.has("head_dim") and config.get("head_dim") is None:
        raise config.error("head_dim", "must be a number")
    head_dim = config.integer("head_dim", _MINIMAX_HEAD_DIM)
    if config.get("rotary_dim") is not None and not config.has("partial_rotary_factor"):
        config = config.replacing({"partial_rotary_factor": config.integer("rotary_dim") / head_dim})
    spec = decoder_from_config(config, _MINIMAX, head_dim=head_dim, theta=_MINIMAX_THETA, rotating=1.0)
    experts = read_experts(config, count="num_local_experts", width="intermediate_size", normalised=True)
    spec = replace(spec, qk_norm=QkNorm.WHOLE)
    return with_experts(spec, replace(experts, sigmoid=True, corrected=True))


def _glm_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = decoder_from_metadata(metadata, "glm4moe", hints, partial=True)
    predicting = metadata.integer("nextn_predict_layers", 0, minimum=0, maximum=spec.num_layers - 1)
    spec = replace(spec, layers=spec.layers[: spec.num_layers - predicting])
    norm = QkNorm.HEAD if "blk.0.attn_q_norm.weight" in hints.names else QkNorm.NONE
    return _gguf_experts(metadata, replace(spec, qk_norm=norm), normalised=True, groups=_ONE_GROUP)


def _dots_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = replace(decoder_from_metadata(metadata, "dots1", hints), qk_norm=QkNorm.HEAD)
    return _gguf_experts(metadata, spec, normalised=False, groups=_ONE_GROUP)


def _minimax_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = decoder_from_metadata(metadata, "minimax-m2", hints, partial=True)
    return _gguf_experts(metadata, replace(spec, qk_norm=QkNorm.WHOLE), normalised=True)


def _gguf_experts(
    metadata: ConfigFields, spec: DecoderSpec, *, normalised: bool, groups: tuple[int, int] | None = None
) -> DecoderSpec:
    check_absent(metadata, ("attention.scale",))
    gating_function(metadata, SIGMOID, (SIGMOID,))
    experts = gguf_experts(
        metadata, spec, normalised=normalised, scaled=True, sigmoid=True, corrected=True, groups=groups
    )
    shared = 0
    if metadata.get("expert_shared_count") is not None:
        shared = metadata.integer("expert_shared_count", minimum=0)
    return behind(spec, experts, shared, metadata, "leading_dense_block_count", 0)


def _ernie(config: ConfigFields) -> DecoderSpec:
    """Read the config; the dense model of the same name has what it shares with this one."""
    if config.number("moe_norm_min", _ERNIE_LEAST) != _ERNIE_LEAST:
        raise config.error("moe_norm_min", f"is not supported; supported is {_ERNIE_LEAST:g}")
    if not config.has("head_dim"):  # Unlike the dense model's, it is not 128 then.
        config = config.replacing({"head_dim": None})
    spec = replace(ERNIE.from_config["Ernie4_5ForCausalLM"](config), architecture=_ERNIE_MOE)
    spec = replace(spec, head_bias=config.flag("use_bias", False))
    experts = read_experts(
        config, count="moe_num_experts", width="moe_intermediate_size", normalised=True, used="moe_k"
    )
    shared, last = config.integer("moe_num_shared_experts", _ERNIE_SHARED, minimum=0), config.get("moe_layer_end_index")
    last = spec.num_layers - 1 if last in (None, -1) else config.integer("moe_layer_end_index", minimum=0)
    first = config.integer("moe_layer_start_index", _ERNIE_FIRST, minimum=0)
    period = config.integer("moe_layer_interval", 1)
    sparse = [first <= index <= last and (index + 1) % period == 0 for index in range(spec.num_layers)]
    if not any(sparse):
        raise config.error("moe_layer_start_index", "leaves no layer with experts")
    return with_experts(spec, replace(experts, corrected=True, shared_width=shared * experts.width), sparse)


def _ernie_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attention.scale",))
    gating_function(metadata, SOFTMAX, (SOFTMAX,))
    if metadata.integer("interleave_moe_layer_step", 1) != 1:
        raise metadata.error("interleave_moe_layer_step", "is not supported; supported is 1")
    spec = decoder_from_metadata(metadata, "ernie4_5-moe", hints)
    spec = replace(spec, head_bias="output.bias" in hints.names)
    experts = gguf_experts(metadata, spec, normalised=True, corrected=True)
    first = metadata.integer("leading_dense_block_count", 0, minimum=0, maximum=spec.num_layers - 1)
    wide = metadata.integer("expert_shared_feed_forward_length", 0, minimum=0)
    sparse = [index >= first for index in range(spec.num_layers)]
    return with_experts(spec, replace(experts, shared_width=wide), sparse)


def _ernie_apart(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors with corrections as vectors: files have them for one group of experts."""
    assert spec.experts is not None
    one_group = (1, spec.experts.count)
    return {
        name: replace(each, shape=one_group[1:]) if name.endswith(_CORRECTION) and each.shape == one_group else each
        for name, each in tensors.items()
    }


_SHARED = {
    f"shared_{name}": f"model.layers.{{i}}.mlp.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")
}
_HF = FileLayout({**HF_NAMES, **_SHARED})
_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{e}"
_MINIMAX_NAMES = {
    "router": "model.layers.{i}.block_sparse_moe.gate.weight",
    "router_correction": "model.layers.{i}.block_sparse_moe.e_score_correction_bias",
    "experts.gate": f"{_EXPERT}.w1.weight",
    "experts.up": f"{_EXPERT}.w3.weight",
    "experts.down": f"{_EXPERT}.w2.weight",
}

_CORRECTION = "mlp.moe_statics.e_score_correction_bias"

ERNIE_MOE = Family(
    from_config={_ERNIE_MOE: _ernie},
    from_metadata={"ernie4_5-moe": _ernie_gguf},
    hf=FileLayout({**_HF.names, "router_correction": f"model.layers.{{i}}.{_CORRECTION}"}, interleaved=True),
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
    apart=_ernie_apart,
)
GLM_MOE = Family(
    from_config={_GLM: _glm},
    from_metadata={"glm4moe": _glm_gguf},
    hf=_HF,
    gguf=FileLayout({**GGUF_NAMES, "post_norm": "blk.{i}.post_attention_norm.weight"}),
)
DOTS = Family(from_config={_DOTS: _dots}, from_metadata={"dots1": _dots_gguf}, hf=_HF)
MINIMAX = Family(
    from_config={_MINIMAX: _minimax},
    from_metadata={"minimax-m2": _minimax_gguf},
    hf=FileLayout({**HF_NAMES, **_MINIMAX_NAMES}),
)
