"""Phi-3, Phi-4 and Phi-4-mini: joined projections, rotation of a part of each head, and longrope."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, same_layers
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.rope.reading import scaling_table, scaling_type, scaling_type_name
from headrace_engine.models.spec import DecoderSpec

_EPS, _ORIGINAL_LENGTH = 1e-5, 4096
_ORIGINAL = "original_max_position_embeddings"
_SCALINGS = ("default", "su", "longrope")


def _phi3(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("layer_types", "attention_bias"))
    if (scaling := scaling_table(config)) is not None:
        if scaling_type(scaling) not in _SCALINGS:
            text = "is not supported for this architecture; supported are longrope and su"
            raise scaling.error(scaling_type_name(scaling), text)
        if config.get(_ORIGINAL) is None and scaling.get(_ORIGINAL) is None:
            config = config.replacing({_ORIGINAL: _ORIGINAL_LENGTH})
    spec = decoder_from_config(config, "Phi3ForCausalLM", rotating=1.0)
    spec = replace(spec, norm_eps=config.number("rms_norm_eps", _EPS))
    if config.get("sliding_window") is None:
        return spec
    return replace(spec, layers=same_layers(spec.num_layers, config.integer("sliding_window")))


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    return decoder_from_metadata(metadata, "phi3", hints, partial=True)


_QKV, _GATE_UP = "model.layers.{i}.self_attn.qkv_proj.weight", "model.layers.{i}.mlp.gate_up_proj.weight"
_HF = {"q": _QKV, "k": _QKV, "v": _QKV, "gate": _GATE_UP, "up": _GATE_UP}
_GGUF = {**dict.fromkeys("qkv", "blk.{i}.attn_qkv.weight"), "gate": "blk.{i}.ffn_up.weight"}

PHI3 = Family(
    from_config={"Phi3ForCausalLM": _phi3},
    from_metadata={"phi3": _gguf},
    hf=FileLayout({**HF_NAMES, **_HF}),
    gguf=FileLayout({**GGUF_NAMES, **_GGUF}),
)
