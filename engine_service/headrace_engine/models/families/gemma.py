"""Gemma: scaled embeddings; 2 and 3 (text) also norms around attention and MLP, windows, two rotary embeddings."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata, periodic_layers
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.rope.reading import rope_from_config
from headrace_engine.models.spec import DecoderSpec, GateKind, NormPlacement, QkNorm, RopeSpec

_WINDOW = 4_096
_HEAD_DIM = 256
_LOCAL_THETA, _GLOBAL_THETA = 10_000.0, 1_000_000.0
_PERIOD2, _PERIOD3 = 2, 6
"""Numbers of layers of which the last one has no window."""
_LAYERS_27B = (46, 62)
"""Numbers of layers of the models of 27B, whose queries are scaled by the hidden size of a head."""


def _gemma(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("use_bidirectional_attention",))
    spec = decoder_from_config(config, "GemmaForCausalLM", head_dim=_HEAD_DIM, tied=True)
    has_bias, gate = config.flag("attention_bias", False), spec.gate
    if config.get("hidden_act") in (None, "gelu"):  # Published configs have this name for the other one.
        gate = GateKind.GELU_TANH
    scale = spec.hidden_size**0.5
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, gate=gate, embedding_scale=scale)


def _gemma2(config: ConfigFields) -> DecoderSpec:
    spec = _from_config(config, "Gemma2ForCausalLM", "")
    layers = windowed_layers(config, spec.num_layers, _slides(spec.num_layers, _PERIOD2), _WINDOW)
    cap = config.number("attn_logit_softcapping", 50.0) if _has_cap(config, "attn_logit_softcapping") else 0.0
    logit_cap = config.number("final_logit_softcapping", 30.0) if _has_cap(config, "final_logit_softcapping") else 0.0
    return replace(spec, layers=layers, attention_soft_cap=cap, logit_soft_cap=logit_cap)


def _gemma3(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("attn_logit_softcapping",))
    spec = _from_config(config, "Gemma3ForCausalLM", "full_attention")
    slides = _slides(spec.num_layers, config.integer("sliding_window_pattern", _PERIOD3))
    layers = windowed_layers(config, spec.num_layers, slides, _WINDOW, local_rope=1)
    cap = 0.0 if config.get("final_logit_softcapping") is None else config.number("final_logit_softcapping")
    ropes = (*spec.ropes, _local_rope(config, spec))
    return replace(spec, ropes=ropes, layers=layers, qk_norm=QkNorm.HEAD, logit_soft_cap=cap)


def _from_config(config: ConfigFields, architecture: str, layer_type: str) -> DecoderSpec:
    check_absent(config, ("use_bidirectional_attention",))
    theta = _GLOBAL_THETA if layer_type else _LOCAL_THETA
    spec = decoder_from_config(
        config,
        architecture,
        head_dim=_HEAD_DIM,
        theta=theta,
        layer_type=layer_type,
        tied=True,
        activation="hidden_activation",
        default_activation="gelu_pytorch_tanh",
    )
    has_bias = config.flag("attention_bias", False)
    scale = config.number("query_pre_attn_scalar", 256) ** -0.5
    return replace(_shaped(spec), qkv_bias=has_bias, output_bias=has_bias, attention_scale=scale)


def _shaped(spec: DecoderSpec) -> DecoderSpec:
    return replace(spec, norms=NormPlacement.AROUND, embedding_scale=spec.hidden_size**0.5)


def _local_rope(config: ConfigFields, spec: DecoderSpec) -> RopeSpec:
    """Return the embedding of layers with a window: that of their type, or in older configs its base alone."""
    parameters = config.table("rope_parameters")
    if parameters is not None and parameters.has("sliding_attention"):
        return rope_from_config(
            config, spec.head_dim, spec.max_length, theta=_LOCAL_THETA, layer_type="sliding_attention"
        )
    return RopeSpec(config.number("rope_local_base_freq", _LOCAL_THETA, minimum=1), spec.head_dim)


def _has_cap(config: ConfigFields, name: str) -> bool:
    """True unless the cap is null, as opposed to absent."""
    return not config.has(name) or config.get(name) is not None


def _slides(count: int, period: int) -> list[bool]:
    return [(index + 1) % period != 0 for index in range(count)]


def _gemma2_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = _from_metadata(metadata, "gemma2", hints)
    return replace(
        spec,
        layers=periodic_layers(metadata, spec.num_layers, _PERIOD2),
        attention_soft_cap=metadata.number("attn_logit_softcapping", 50.0),
        logit_soft_cap=metadata.number("final_logit_softcapping", 30.0),
    )


def _gemma3_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attn_logit_softcapping",))
    spec = _from_metadata(metadata, "gemma3", hints)
    capped = metadata.get("final_logit_softcapping") not in (None, 0, 0.0)
    local = RopeSpec(metadata.number("rope.freq_base_swa", _LOCAL_THETA, minimum=1), spec.head_dim)
    return replace(
        spec,
        layers=periodic_layers(metadata, spec.num_layers, _PERIOD3, local_rope=1),
        ropes=(*spec.ropes, local),
        qk_norm=QkNorm.HEAD,
        logit_soft_cap=metadata.number("final_logit_softcapping") if capped else 0.0,
    )


def _from_metadata(metadata: ConfigFields, architecture: str, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("attention.scale", "expert_count"))
    spec = _shaped(decoder_from_metadata(metadata, architecture, hints))
    by_hidden = (spec.hidden_size / spec.num_heads) ** -0.5 if spec.num_layers in _LAYERS_27B else None
    return replace(spec, gate=GateKind.GELU_TANH, attention_scale=by_hidden)


_HF = {
    "post_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "attention_out_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "mlp_out_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}

GEMMA1 = Family(from_config={"GemmaForCausalLM": _gemma}, from_metadata={}, hf=FileLayout(HF_NAMES, norm_shift=1.0))
GEMMA = Family(
    from_config={"Gemma2ForCausalLM": _gemma2, "Gemma3ForCausalLM": _gemma3},
    from_metadata={"gemma2": _gemma2_gguf, "gemma3": _gemma3_gguf},
    hf=FileLayout({**HF_NAMES, **_HF}, norm_shift=1.0),
    gguf=FileLayout(GGUF_NAMES),
)
