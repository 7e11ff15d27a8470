"""Qwen2 and Qwen2.5: biases on queries, keys and values, and optional windows in the upper layers."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import (
    Family,
    GgufHints,
    check_absent,
    decoder_from_config,
    decoder_from_metadata,
)
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES
from headrace_engine.models.spec import DecoderSpec

_MAX_WINDOW_LAYERS = 28
_WINDOW = 4_096


def _qwen2(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "Qwen2ForCausalLM")
    return replace(spec, qkv_bias=True, windows=_windows(config, spec.num_layers))


def _windows(config: ConfigFields, layers: int) -> tuple[int | None, ...]:
    """Return windows by layer_types if given, else in all layers from max_window_layers on; none if switched off."""
    if not config.flag("use_sliding_window", False):
        return ()
    if config.has("sliding_window") and config.get("sliding_window") is None:
        return ()
    window = config.integer("sliding_window", _WINDOW)
    if config.get("layer_types") is not None:
        return tuple(window if slides else None for slides in _sliding_layers(config, layers))
    first = config.integer("max_window_layers", _MAX_WINDOW_LAYERS, minimum=0)
    return tuple(window if index >= first else None for index in range(layers))


def _sliding_layers(config: ConfigFields, layers: int) -> list[bool]:
    kinds = config.get("layer_types")
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise config.error("layer_types", f"must list {layers} of {', '.join(known)}")
    return [kind == "sliding_attention" for kind in kinds]


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    return decoder_from_metadata(metadata, "qwen2", hints)


QWEN2 = Family(
    from_config={"Qwen2ForCausalLM": _qwen2},
    from_metadata={"qwen2": _gguf},
    hf_names=HF_NAMES,
    gguf_names=GGUF_NAMES,
)
