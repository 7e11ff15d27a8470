"""Llama, and what computes the same: SmolLM2, the R1 distills, EXAONE 3, InternLM2, XVERSE, Seed-OSS, ERNIE 4.5, CWM.

SmolLM3 leaves layers without rotation, CWM has windows, and ERNIE's files have the rows of rotary pairs adjacent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, heads_apart, same_layers
from headrace_engine.models.families.from_config import decoder_from_config, windowed_layers
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.families.mixtures.fields import gguf_experts, with_experts
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec, LayerSpec

_INTERNLM2 = "InternLM2ForCausalLM"
_SMOLLM3_THETA = 2_000_000.0
_SMOLLM3_PERIOD = 4
"""Each fourth layer of SmolLM3 does not rotate."""
_HEAD_DIM = 128
"""Of Seed-OSS, ERNIE and CWM, where a config does not say."""
_ERNIE_THETA, _ERNIE_EPS = 500_000.0, 1e-5
_CWM_THETA, _CWM_EPS, _CWM_WINDOW = 1_000_000.0, 1e-5, 8_192
_CWM_PERIOD = 4
"""Each first layer of a period of CWM has no window."""

OTHER_MODELS = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
)
"""Metadata of models that are also named "llama" but compute something else."""


def with_biases(spec: DecoderSpec, config: ConfigFields) -> DecoderSpec:
    """Return the spec with the biases that a config of this kind switches on."""
    has_bias = config.flag("attention_bias", False)
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=config.flag("mlp_bias", False))


def _llama(config: ConfigFields) -> DecoderSpec:
    return with_biases(decoder_from_config(config, "LlamaForCausalLM"), config)


def _smollm3(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "SmolLM3ForCausalLM", theta=_SMOLLM3_THETA, tied=True)
    rotates = _rotating_layers(config, spec.num_layers)
    layers = same_layers(spec.num_layers)
    if config.flag("use_sliding_window", False) and config.get("sliding_window") is not None:
        slides = [not each for each in rotates]
        layers = windowed_layers(config, spec.num_layers, slides, config.integer("sliding_window"))
    return replace(with_biases(spec, config), layers=_rotated(layers, rotates))


def _exaone(config: ConfigFields) -> DecoderSpec:
    named = {own: config.get(name) for name, own in _EXAONE_FIELDS.items() if config.has(name)}
    return decoder_from_config(config.replacing(named), "ExaoneForCausalLM")


def _xverse(config: ConfigFields) -> DecoderSpec:
    return decoder_from_config(config, "XverseForCausalLM")


def _seed_oss(config: ConfigFields) -> DecoderSpec:
    spec = decoder_from_config(config, "SeedOssForCausalLM", head_dim=_HEAD_DIM)
    own, output = config.flag("attention_bias", True), config.flag("attention_out_bias", False)
    return replace(spec, qkv_bias=own, output_bias=output, mlp_bias=config.flag("mlp_bias", False))


def _ernie(config: ConfigFields) -> DecoderSpec:
    if config.number("compression_ratio", 1.0) != 1:
        raise config.error("compression_ratio", "is not supported; supported is 1")
    spec = decoder_from_config(config, "Ernie4_5ForCausalLM", head_dim=_HEAD_DIM, theta=_ERNIE_THETA, tied=True)
    has_bias, eps = config.flag("use_bias", False), config.number("rms_norm_eps", _ERNIE_EPS)
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=has_bias, norm_eps=eps)


def _cwm(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("attention_bias",))
    if config.get("rope_parameters") is None and config.table("rope_scaling") is None:
        raise config.error("rope_parameters", "must say how positions are scaled")
    spec = decoder_from_config(config, "CwmForCausalLM", head_dim=_HEAD_DIM, theta=_CWM_THETA)
    slides = [index % _CWM_PERIOD != 0 for index in range(spec.num_layers)]
    layers = windowed_layers(config, spec.num_layers, slides, _CWM_WINDOW)
    eps = config.number("rms_norm_eps", _CWM_EPS)
    return replace(spec, mlp_bias=config.flag("mlp_bias", False), norm_eps=eps, layers=layers)


def _internlm2(config: ConfigFields) -> DecoderSpec:
    spec, has_bias = decoder_from_config(config, _INTERNLM2), config.flag("bias", False)
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias)


def _internlm2_apart(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    return heads_apart(spec, tensors, source, "model.layers.{i}.attention.wqkv")


def _rotating_layers(config: ConfigFields, count: int) -> list[bool]:
    listed = config.get("no_rope_layers")
    if listed is None or listed == []:
        period = config.integer("no_rope_layer_interval", _SMOLLM3_PERIOD)
        return [(index + 1) % period != 0 for index in range(count)]
    if not isinstance(listed, list) or len(listed) < count or any(each not in (0, 1) for each in listed):
        raise config.error("no_rope_layers", f"must list {count} of 0 and 1")
    return [each == 1 for each in listed[:count]]


def _rotated(layers: tuple[LayerSpec, ...], rotates: list[bool]) -> tuple[LayerSpec, ...]:
    pairs = zip(layers, rotates, strict=True)
    return tuple(replace(layer, rope=0 if each else None) for layer, each in pairs)


def _gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    """Read the metadata of Llama, of Mistral, or of Mixtral, which has experts."""
    check_absent(metadata, [name for name in OTHER_MODELS if name != "expert_count"])
    spec = decoder_from_metadata(metadata, "llama", hints)
    if metadata.get("expert_count") in (None, 0):
        return spec
    return with_experts(spec, gguf_experts(metadata, spec, normalised=True, width="feed_forward_length"))


def _smollm3_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, OTHER_MODELS)
    spec = decoder_from_metadata(metadata, "smollm3", hints)
    rotates = [(index + 1) % _SMOLLM3_PERIOD != 0 for index in range(spec.num_layers)]
    return replace(spec, layers=_rotated(spec.layers, rotates))


def _internlm2_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, OTHER_MODELS)
    return decoder_from_metadata(metadata, "internlm2", hints)


def _exaone_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, OTHER_MODELS)
    return decoder_from_metadata(metadata, "exaone", hints)


def _seed_oss_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, OTHER_MODELS)
    return decoder_from_metadata(metadata, "seed_oss", hints)


def _ernie_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    check_absent(metadata, OTHER_MODELS)
    return decoder_from_metadata(metadata, "ernie4_5", hints)


LLAMA = Family(
    from_config={
        "LlamaForCausalLM": _llama,
        "CwmForCausalLM": _cwm,
        "SmolLM3ForCausalLM": _smollm3,
        "XverseForCausalLM": _xverse,
    },
    from_metadata={"llama": _gguf, "smollm3": _smollm3_gguf},
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
)

ERNIE = Family(
    from_config={"Ernie4_5ForCausalLM": _ernie},
    from_metadata={"ernie4_5": _ernie_gguf},
    hf=FileLayout(HF_NAMES, interleaved=True),
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
)

SEED_OSS = Family(
    from_config={"SeedOssForCausalLM": _seed_oss},
    from_metadata={"seed_oss": _seed_oss_gguf},
    gguf=FileLayout({**GGUF_NAMES, "post_norm": "blk.{i}.post_attention_norm.weight"}),
)

_INTERNLM2_NAMES = {
    "embed": "model.tok_embeddings.weight",
    "head": "output.weight",
    "input_norm": "model.layers.{i}.attention_norm.weight",
    **{part: f"model.layers.{{i}}.attention.{part}.weight" for part in "qkv"},
    "o": "model.layers.{i}.attention.wo.weight",
    "post_norm": "model.layers.{i}.ffn_norm.weight",
    "gate": "model.layers.{i}.feed_forward.w1.weight",
    "up": "model.layers.{i}.feed_forward.w3.weight",
    "down": "model.layers.{i}.feed_forward.w2.weight",
}

INTERNLM2 = Family(
    from_config={_INTERNLM2: _internlm2},
    from_metadata={"internlm2": _internlm2_gguf},
    hf=FileLayout({**HF_NAMES, **_INTERNLM2_NAMES}),
    gguf=FileLayout(GGUF_NAMES, interleaved=True),
    apart=_internlm2_apart,
)

_EXAONE_FIELDS = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
"""Fields of EXAONE's configs, and their names here."""

_EXAONE = {
    "embed": "transformer.wte.weight",
    "final_norm": "transformer.ln_f.weight",
    "input_norm": "transformer.h.{i}.ln_1.weight",
    **{name: f"transformer.h.{{i}}.attn.attention.{name}_proj.weight" for name in "qkv"},
    "o": "transformer.h.{i}.attn.attention.out_proj.weight",
    "post_norm": "transformer.h.{i}.ln_2.weight",
    "gate": "transformer.h.{i}.mlp.c_fc_0.weight",
    "up": "transformer.h.{i}.mlp.c_fc_1.weight",
    "down": "transformer.h.{i}.mlp.c_proj.weight",
}

EXAONE = Family(
    from_config={"ExaoneForCausalLM": _exaone},
    from_metadata={"exaone": _exaone_gguf},
    hf=FileLayout({**HF_NAMES, **_EXAONE}),
)
