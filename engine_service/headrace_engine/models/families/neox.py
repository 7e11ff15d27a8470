"""GPT-NeoX (Pythia) and Falcon: LayerNorm, MLPs without a gate, and heads whose projections stand together in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import Family, GgufHints, check_absent, heads_apart
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, FileLayout
from headrace_engine.models.spec import DecoderSpec, GateKind, NormKind

_EPS = 1e-5
_ROTATING = 0.25
_FALCON_LENGTH = 2_048
_MASKS = (".attention.bias", ".attention.masked_bias")
"""Ends of the names of buffers that older checkpoints of GPT-NeoX hold: they mask later positions."""

_NEOX_FIELDS = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
_FALCON_FIELDS = {
    "n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_head_kv": "num_key_value_heads", "num_kv_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps", "activation": "hidden_act",
}  # fmt: skip
"""Fields of these families' configs, and their names here."""


def _renamed(config: ConfigFields, fields: Mapping[str, str]) -> ConfigFields:
    return config.replacing({own: config.get(name) for name, own in fields.items() if config.get(name) is not None})


def _neox(config: ConfigFields) -> DecoderSpec:
    config = _renamed(config, _NEOX_FIELDS).replacing({"num_key_value_heads": None})
    spec = decoder_from_config(config, "GPTNeoXForCausalLM", rotating=_ROTATING, default_activation="gelu")
    has_bias = config.flag("attention_bias", True)
    spec = _with_layer_norm(config, replace(spec, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=True))
    parallel = config.flag("use_parallel_residual", True)
    return replace(spec, parallel=parallel, parallel_norms=parallel)


def _falcon(config: ConfigFields) -> DecoderSpec:
    check_absent(config, ("alibi", "apply_residual_connection_post_layernorm"))
    newer, config = config.flag("new_decoder_architecture", False), _renamed(config, _FALCON_FIELDS)
    absent = {"max_position_embeddings": _FALCON_LENGTH, "intermediate_size": 4 * config.integer("hidden_size")}
    changes: dict[str, int | None] = {name: value for name, value in absent.items() if config.get(name) is None}
    if not newer:
        changes["num_key_value_heads"] = 1 if config.flag("multi_query", True) else None
    config = config.replacing(changes)
    spec = decoder_from_config(config, "FalconForCausalLM", tied=True, default_activation="gelu")
    has_bias, norms = config.flag("bias", False), config.integer("num_ln_in_parallel_attn", 2 if newer else 1)
    spec = _with_layer_norm(config, replace(spec, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=has_bias))
    parallel = newer or config.flag("parallel_attn", True)
    if norms > 1 + newer:
        raise config.error("num_ln_in_parallel_attn", f"must be at most {1 + newer}")
    return replace(spec, parallel=parallel, parallel_norms=norms == 2)


def _with_layer_norm(config: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    eps = config.number("layer_norm_eps", _EPS)
    return replace(spec, norm=NormKind.LAYER, norm_bias=True, norm_eps=eps, mlp_gate=False)


def _neox_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    spec = decoder_from_metadata(metadata, "gptneox", hints, partial=True, layer_norm=True)
    parallel = metadata.flag("use_parallel_residual", True)
    return replace(spec, gate=GateKind.GELU, parallel=parallel, parallel_norms=parallel)


def _falcon_gguf(metadata: ConfigFields, hints: GgufHints) -> DecoderSpec:
    """Read the metadata of a model whose attention and MLP share a norm."""
    spec = decoder_from_metadata(metadata, "falcon", hints, layer_norm=True)
    return replace(spec, gate=GateKind.GELU, parallel=True)


def _neox_apart(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors with a projection for each of queries, keys and values, which files have head by head."""
    return heads_apart(spec, tensors, source, "gpt_neox.layers.{i}.attention.query_key_value")


def _falcon_apart(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors with projections as above; older files name the norms of attention and MLP otherwise."""
    found = heads_apart(spec, tensors, source, "transformer.h.{i}.self_attention.query_key_value")
    for layer in range(spec.num_layers) if spec.parallel_norms else ():
        for old, own in (("ln_attn", "input_layernorm"), ("ln_mlp", "post_attention_layernorm")):
            for kind in ("weight", "bias"):
                name = f"transformer.h.{layer}.{own}.{kind}"
                tensor = found.pop(f"transformer.h.{layer}.{old}.{kind}", None)
                if tensor is not None:
                    found[name] = replace(tensor, name=name)
    return found


_NEOX = "gpt_neox.layers.{i}"
_NEOX_HF = {
    "embed": "gpt_neox.embed_in.weight",
    "final_norm": "gpt_neox.final_layer_norm.weight",
    "head": "embed_out.weight",
    "input_norm": f"{_NEOX}.input_layernorm.weight",
    "post_norm": f"{_NEOX}.post_attention_layernorm.weight",
    **{part: f"{_NEOX}.attention.{part}.weight" for part in "qkv"},
    "o": f"{_NEOX}.attention.dense.weight",
    "up": f"{_NEOX}.mlp.dense_h_to_4h.weight",
    "down": f"{_NEOX}.mlp.dense_4h_to_h.weight",
}
_FALCON = "transformer.h.{i}"
_FALCON_HF = {
    "embed": "transformer.word_embeddings.weight",
    "final_norm": "transformer.ln_f.weight",
    "input_norm": f"{_FALCON}.input_layernorm.weight",
    "post_norm": f"{_FALCON}.post_attention_layernorm.weight",
    **{part: f"{_FALCON}.self_attention.{part}.weight" for part in "qkv"},
    "o": f"{_FALCON}.self_attention.dense.weight",
    "up": f"{_FALCON}.mlp.dense_h_to_4h.weight",
    "down": f"{_FALCON}.mlp.dense_4h_to_h.weight",
}
_JOINED = dict.fromkeys("qkv", "blk.{i}.attn_qkv.weight")

NEOX = Family(
    from_config={"GPTNeoXForCausalLM": _neox},
    from_metadata={"gptneox": _neox_gguf},
    hf=FileLayout({**HF_NAMES, **_NEOX_HF}),
    gguf=FileLayout({**GGUF_NAMES, **_JOINED}),
    apart=_neox_apart,
    derived=_MASKS,
)
FALCON = Family(
    from_config={"FalconForCausalLM": _falcon},
    from_metadata={"falcon": _falcon_gguf},
    hf=FileLayout({**HF_NAMES, **_FALCON_HF}),
    gguf=FileLayout({**GGUF_NAMES, **_JOINED}),
    apart=_falcon_apart,
)
