"""OLMo 2 and 3, EXAONE 4: norms behind attention and MLP only, and of queries and keys.

OLMo's are of all heads together, EXAONE's of each head. Layers of EXAONE without a window rotate where none has one.
"""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, rotating_windows
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata, gguf_window, periodic_layers
from headrace_engine.models.layout import HF_NAMES, FileLayout
from headrace_engine.models.rope.reading import rope_from_config
from headrace_engine.models.spec import DecoderSpec, NormPlacement, QkNorm, RopeSpec

_EPS = 1e-5
_WINDOW = 4_096
_PERIOD = 4
"""Each fourth layer of OLMo 3 and EXAONE 4 has no window."""
_OLMO3_THETA = 500_000.0
_EXAONE4 = "Exaone4ForCausalLM"


def _olmo2(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("layer_types", "clip_qkv"))
    return _shaped(config, decoder_from_config(config, "Olmo2ForCausalLM"))


def _olmo3(config: ConfigFields) -> DecoderSpec:
    """Read the config; layers with a window rotate without scaling."""
    check_absent(config, ("clip_qkv",))
    spec = decoder_from_config(config, "Olmo3ForCausalLM", theta=_OLMO3_THETA, layer_type="full_attention")
    slides = [(index + 1) % _PERIOD != 0 for index in range(spec.num_layers)]
    layers = windowed_layers(config, spec.num_layers, slides, _WINDOW, local_rope=1)
    return _shaped(config, replace(spec, ropes=(*spec.ropes, _local_rope(config, spec)), layers=layers))


def _exaone4(config: ConfigFields) -> DecoderSpec:
    """Read the config: a null window means none, and that every layer rotates."""
    check_absent(config, ("attention_bias", "mlp_bias"))
    spec = decoder_from_config(config, _EXAONE4)
    unlisted, windows = config.get("layer_types") is None, config.get("sliding_window") is not None
    if unlisted and windows and config.has("sliding_window_pattern") and config.get("sliding_window_pattern") is None:
        raise config.error("sliding_window_pattern", "must say after how many layers one has no window")
    # Files that list the types of layers may write the pattern in letters.
    period = _PERIOD if config.get("layer_types") is not None else config.integer("sliding_window_pattern", _PERIOD)
    slides = [(index + 1) % period != 0 for index in range(spec.num_layers)]
    layers = windowed_layers(config, spec.num_layers, slides, _WINDOW)
    if not config.has("sliding_window") or config.get("sliding_window") is not None:
        layers = rotating_windows(layers)
    eps = config.number("rms_norm_eps", _EPS)
    return replace(spec, norms=NormPlacement.AFTER, qk_norm=QkNorm.HEAD, norm_eps=eps, layers=layers)


def _local_rope(config: ConfigFields, spec: DecoderSpec) -> RopeSpec:
    parameters = config.table("rope_parameters")
    if parameters is not None and parameters.has("sliding_attention"):
        return rope_from_config(
            config, spec.head_dim, spec.max_length, theta=_OLMO3_THETA, layer_type="sliding_attention"
        )
    return RopeSpec(spec.ropes[0].theta, spec.head_dim)


def _shaped(config: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    has_bias = config.flag("attention_bias", False)
    spec = replace(spec, qkv_bias=has_bias, output_bias=has_bias, norm_eps=config.number("rms_norm_eps", _EPS))
    return replace(spec, norms=NormPlacement.AFTER, qk_norm=QkNorm.WHOLE)


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale", "attention.clamp_kqv"))
    spec = decoder_from_metadata(metadata, "olmo2", hints)
    local = RopeSpec(spec.ropes[0].theta, spec.head_dim)
    layers = periodic_layers(metadata, spec.num_layers, _PERIOD, local_rope=1)
    return replace(spec, ropes=(*spec.ropes, local), layers=layers, norms=NormPlacement.AFTER, qk_norm=QkNorm.WHOLE)


def _exaone4_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    spec = decoder_from_metadata(metadata, "exaone4", hints)
    layers = periodic_layers(metadata, spec.num_layers, _PERIOD)
    if gguf_window(metadata) is not None:
        layers = rotating_windows(layers)
    return replace(spec, norms=NormPlacement.AFTER, qk_norm=QkNorm.HEAD, layers=layers)


_HF = {
    "attention_out_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "mlp_out_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}

OLMO = Family(
    from_config={"Olmo2ForCausalLM": _olmo2, "Olmo3ForCausalLM": _olmo3, _EXAONE4: _exaone4},
    from_metadata={"olmo2": _gguf, "exaone4": _exaone4_gguf},
    hf=FileLayout({**HF_NAMES, **_HF}),
)
