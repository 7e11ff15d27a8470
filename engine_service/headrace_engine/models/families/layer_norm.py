"""Families with LayerNorm: Command R and R7B, StableLM, Phi-1, Phi-1.5 and Phi-2, StarCoder2."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, rotating_windows, same_layers
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata, periodic_layers
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec, GateKind, NormKind

_EPS = 1e-5
_COMMAND_THETA = 500_000.0
_COMMAND_SCALE = 0.0625
_COMMAND_PERIOD = 4
"""Each fourth layer of Command R7B has no window, and does not rotate."""
_COMMAND_WINDOW = 4_096
_STABLELM_ROTATING, _PHI_ROTATING = 0.25, 0.5


def _with_layer_norm(config: ConfigFields, spec: DecoderSpec, eps: str = "layer_norm_eps") -> DecoderSpec:
    return replace(spec, norm=NormKind.LAYER, norm_bias=True, norm_eps=config.number(eps, _EPS))


def _cohere(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("use_qk_norm",))
    return _command(config, decoder_from_config(config, "CohereForCausalLM", theta=_COMMAND_THETA, tied=True))


def _cohere2(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "Cohere2ForCausalLM", tied=True)
    period = config.integer("sliding_window_pattern", _COMMAND_PERIOD)
    slides = [(index + 1) % period != 0 for index in range(spec.num_layers)]
    layers = windowed_layers(config, spec.num_layers, slides, _COMMAND_WINDOW)
    return _command(config, replace(spec, layers=rotating_windows(layers)))


def _command(config: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    has_bias, scale = config.flag("attention_bias", False), config.number("logit_scale", _COMMAND_SCALE)
    spec = replace(_with_layer_norm(config, spec), norm_bias=False, parallel=True, logit_scale=scale)
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias)


def _command_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    return _scaled(metadata, decoder_from_metadata(metadata, "command-r", hints, layer_norm=True))


def _cohere2_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = decoder_from_metadata(metadata, "cohere2", hints, layer_norm=True)
    layers = periodic_layers(metadata, spec.num_layers, _COMMAND_PERIOD)
    return _scaled(metadata, replace(spec, layers=rotating_windows(layers)))


def _scaled(metadata: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    return replace(spec, parallel=True, logit_scale=metadata.number("logit_scale", 1.0))


def _stablelm(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("qk_layernorm",))
    spec = decoder_from_config(config, "StableLmForCausalLM", rotating=_STABLELM_ROTATING)
    parallel = config.flag("use_parallel_residual", False)
    return replace(_with_layer_norm(config, spec), qkv_bias=config.flag("use_qkv_bias", False), parallel=parallel)


def _stablelm_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = decoder_from_metadata(metadata, "stablelm", hints, partial=True, layer_norm=True)
    return replace(spec, parallel="blk.0.ffn_norm.weight" not in hints.names)


def _phi(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("qk_layernorm",))
    spec = decoder_from_config(config, "PhiForCausalLM", rotating=_PHI_ROTATING, default_activation="gelu_new")
    spec = replace(_with_layer_norm(config, spec), parallel=True, mlp_gate=False, head_bias=True)
    return replace(spec, qkv_bias=True, output_bias=True, mlp_bias=True)


def _phi_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = decoder_from_metadata(metadata, "phi2", hints, partial=True, layer_norm=True)
    return replace(spec, parallel=True, gate=GateKind.GELU_TANH)


def _starcoder2(config: ConfigFields) -> DecoderSpec:
    activation = "gelu_pytorch_tanh"
    spec = decoder_from_config(config, "Starcoder2ForCausalLM", tied=True, default_activation=activation)
    spec, has_bias = _with_layer_norm(config, spec, "norm_epsilon"), config.flag("use_bias", True)
    if config.get("sliding_window") is not None:
        spec = replace(spec, layers=same_layers(spec.num_layers, config.integer("sliding_window")))
    return replace(spec, mlp_gate=False, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=has_bias)


def _starcoder2_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    return replace(decoder_from_metadata(metadata, "starcoder2", hints, layer_norm=True), gate=GateKind.GELU_TANH)


_PHI = {
    "final_norm": "model.final_layernorm.weight",
    "o": "model.layers.{i}.self_attn.dense.weight",
    "up": "model.layers.{i}.mlp.fc1.weight",
    "down": "model.layers.{i}.mlp.fc2.weight",
}
_STARCODER2 = {"up": "model.layers.{i}.mlp.c_fc.weight", "down": "model.layers.{i}.mlp.c_proj.weight"}

COMMAND_R = Family(
    from_config={"CohereForCausalLM": _cohere, "Cohere2ForCausalLM": _cohere2},
    from_metadata={"command-r": _command_gguf, "cohere2": _cohere2_gguf},
    hf=FileLayout(HF_NAMES, interleaved=True),
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
)
STABLELM = Family(from_config={"StableLmForCausalLM": _stablelm}, from_metadata={"stablelm": _stablelm_gguf})
PHI = Family(
    from_config={"PhiForCausalLM": _phi}, from_metadata={"phi2": _phi_gguf}, hf=FileLayout({**HF_NAMES, **_PHI})
)
STARCODER2 = Family(
    from_config={"Starcoder2ForCausalLM": _starcoder2},
    from_metadata={"starcoder2": _starcoder2_gguf},
    hf=FileLayout({**HF_NAMES, **_STARCODER2}),
)
