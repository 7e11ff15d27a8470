"""Qwen2, Qwen2.5 and Qwen3, with optional windows in the upper layers.

Qwen2 has biases on queries, keys and values; Qwen3 norms of each head of queries and keys, and no biases.
"""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, same_layers
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.spec import DecoderSpec, LayerSpec, QkNorm

_MAX_WINDOW_LAYERS = 28
_QWEN3_HEAD_DIM = 128
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


def _qwen2_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    return decoder_from_metadata(metadata, "qwen2", hints)


def _qwen3(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "Qwen3ForCausalLM", head_dim=_QWEN3_HEAD_DIM)
    has_bias = config.flag("attention_bias", False)
    layers = upper_windows(config, spec.num_layers)
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, qk_norm=QkNorm.HEAD, layers=layers)


def _qwen3_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    return replace(decoder_from_metadata(metadata, "qwen3", hints), qk_norm=QkNorm.HEAD)


QWEN2 = Family(from_config={"Qwen2ForCausalLM": _qwen2}, from_metadata={"qwen2": _qwen2_gguf})
QWEN3 = Family(from_config={"Qwen3ForCausalLM": _qwen3}, from_metadata={"qwen3": _qwen3_gguf})
