"""Qwen3: norms of each head of queries and keys, and no biases."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.qwen2 import upper_windows
from headrace_engine.models.spec import DecoderSpec, QkNorm

_HEAD_DIM = 128


def _qwen3(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "Qwen3ForCausalLM", head_dim=_HEAD_DIM)
    has_bias = config.flag("attention_bias", False)
    layers = upper_windows(config, spec.num_layers)
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, qk_norm=QkNorm.HEAD, layers=layers)


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    return replace(decoder_from_metadata(metadata, "qwen3", hints), qk_norm=QkNorm.HEAD)


QWEN3 = Family(from_config={"Qwen3ForCausalLM": _qwen3}, from_metadata={"qwen3": _gguf})
