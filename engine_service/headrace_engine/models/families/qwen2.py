"""Qwen2 and Qwen2.5: biases on queries, keys and values, and optional windows in the upper layers."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, same_layers
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.spec import DecoderSpec, LayerSpec

_MAX_WINDOW_LAYERS = 28
_WINDOW = 4_096


def _qwen2(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "Qwen2ForCausalLM")
    return replace(spec, qkv_bias=True, layers=upper_windows(config, spec.num_layers))


def upper_windows(config: ConfigFields, count: int) -> tuple[LayerSpec, ...]:
    """Return layers with windows as `layer_types` says, else from max_window_layers on; none if switched off."""
    if not config.flag("use_sliding_window", False):
        return same_layers(count)
    first = config.integer("max_window_layers", _MAX_WINDOW_LAYERS, minimum=0)
    return windowed_layers(config, count, [index >= first for index in range(count)], _WINDOW)


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    return decoder_from_metadata(metadata, "qwen2", hints)


QWEN2 = Family(from_config={"Qwen2ForCausalLM": _qwen2}, from_metadata={"qwen2": _gguf})
