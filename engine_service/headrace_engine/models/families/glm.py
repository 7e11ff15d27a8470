"""GLM-4: rotation of adjacent pairs in a part of each head; GLM-4-0414 and GLM-Z1 also have norms behind branches."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec, NormPlacement

_HEAD_DIM = 128
_ROTATING = 0.5
_EPS = 0.00000015625


def _glm(config: ConfigFields) -> DecoderSpec:
    return _from_config(config, "GlmForCausalLM")


def _glm4(config: ConfigFields) -> DecoderSpec:
    return replace(_from_config(config, "Glm4ForCausalLM"), norms=NormPlacement.AROUND)


def _from_config(config: ConfigFields, architecture: str) -> DecoderSpec:
    check_absent(config, ("layer_types", "sliding_window"))
    spec = decoder_from_config(config, architecture, head_dim=_HEAD_DIM, rotating=_ROTATING)
    return replace(spec, qkv_bias=config.flag("attention_bias", True), norm_eps=config.number("rms_norm_eps", _EPS))


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale", "rope.dimension_sections"))
    return replace(decoder_from_metadata(metadata, "glm4", hints, partial=True), norms=NormPlacement.AROUND)


def _chatglm_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, ("expert_count", "attention.scale"))
    return decoder_from_metadata(metadata, "chatglm", hints, partial=True)


_GATE_UP = "model.layers.{i}.mlp.gate_up_proj.weight"
_HF = {
    "gate": _GATE_UP,
    "up": _GATE_UP,
    "attention_out_norm": "model.layers.{i}.post_self_attn_layernorm.weight",
    "mlp_out_norm": "model.layers.{i}.post_mlp_layernorm.weight",
}

GLM = Family(
    from_config={"GlmForCausalLM": _glm, "Glm4ForCausalLM": _glm4},
    from_metadata={"glm4": _gguf},
    hf=FileLayout({**HF_NAMES, **_HF}, interleaved=True),
    gguf=FileLayout({**GGUF_NAMES, "gate": "blk.{i}.ffn_up.weight"}, interleaved=True),
)

_CHATGLM = {**dict.fromkeys("qkv", "blk.{i}.attn_qkv.weight"), "gate": "blk.{i}.ffn_up.weight"}

CHATGLM = Family(
    from_config={},
    from_metadata={"chatglm": _chatglm_gguf},
    gguf=FileLayout({**GGUF_NAMES, **_CHATGLM}, interleaved=True),
)
