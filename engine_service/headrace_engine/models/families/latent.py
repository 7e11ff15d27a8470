"""Multi-head latent attention: what configs and GGUF metadata say of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace_engine.config import RopeScalingType
from headrace_engine.errors import shown
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import GgufHints, check_width
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.families.from_metadata import decoder_from_metadata
from headrace_engine.models.rope.reading import (
    MOST_MSCALE,
    scaling_table,
    scaling_type,
    scaling_type_name,
    yarn_attention_factor,
    yarn_scale,
)
from headrace_engine.models.spec import DecoderSpec, LatentSpec

_EPS = 1e-6
"""Of the norms of latents, whatever the config says of others."""
_MOST_ROTATING, _MOST_STILL = 256, 1_024
"""Maximum entries of a head that rotate, and that do not: more than any model has, and what is made of a small file
stays small."""
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def decoder_with_latents(config: ConfigFields, architecture: str, **options: Any) -> DecoderSpec:
    """Read the fields that decoders with latent attention share.

    Args:
        options: see `decoder_from_config`.

    Raises:
        BadModel: a field is absent, of the wrong type or not supported; names it.
    """
    for name in ("quantization_config", "compression_config"):
        if (quantized := config.table(name)) is not None:
            text = "is not supported: of this architecture unquantized checkpoints are read"
            text += ", which weight_quant of an install quantizes"
            raise quantized.error("quant_method", text)
    rotating = config.integer("qk_rope_head_dim", maximum=_MOST_ROTATING)
    if rotating % 2:
        raise config.error("qk_rope_head_dim", "must be even, for rotary embeddings")
    still = config.integer("qk_nope_head_dim", maximum=_MOST_STILL)
    # What a config may call head_dim is what rotates of a head.
    spec = decoder_from_config(config.replacing({"head_dim": rotating}), architecture, **options)
    if spec.num_kv_heads != spec.num_heads:
        raise config.error("num_key_value_heads", f"is not supported: {spec.num_heads} heads have keys of their own")
    head_dim, values = rotating + still, config.integer("v_head_dim")
    check_width(config, "num_attention_heads", spec.num_heads, head_dim)
    if head_dim % 2:
        raise config.error("qk_nope_head_dim", f"must be even, as qk_rope_head_dim = {rotating} is")
    if values > head_dim:
        raise config.error("v_head_dim", f"is not supported: it must be at most the size of keys, {head_dim}")
    if not config.has("q_lora_rank"):
        raise config.error("q_lora_rank", "must be a number, or null where queries have no latent")
    query_rank = None if config.get("q_lora_rank") is None else config.integer("q_lora_rank")
    has_bias = config.flag("attention_bias", False)
    scale, scaled_by = _score_scale(config, spec, head_dim)
    return replace(
        spec,
        head_dim=head_dim,
        attention_scale=scale,
        qkv_bias=has_bias,
        output_bias=has_bias,
        latent=LatentSpec(config.integer("kv_lora_rank"), query_rank, _EPS, values, scaled_by),
    )


def _score_scale(config: ConfigFields, spec: DecoderSpec, head_dim: int) -> tuple[float | None, str]:
    """Return the factor of products of queries and keys if YaRN adds the square of its own, and the field that says so.

    None and "": it does not.
    """
    scaling = scaling_table(config)
    if scaling is None or not scaling.get("mscale_all_dim") or (kind := scaling_type(scaling)) == "default":
        return None, ""
    if kind != "yarn":
        raise scaling.error("mscale_all_dim", f"is not supported with {scaling_type_name(scaling)} = {kind!r}")
    more = yarn_attention_factor(spec.ropes[0].factor, yarn_scale(scaling, "mscale_all_dim"))
    return float(head_dim**-0.5 * more * more), scaling.described("mscale_all_dim")


def latents_from_metadata(metadata: ConfigFields, architecture: str, hints: GgufHints) -> DecoderSpec:
    """Read the GGUF metadata that decoders with latent attention share.

    Raises:
        BadModel: a key is absent, of the wrong type or not supported; names it.
    """
    heads, rotating = metadata.integer("attention.head_count"), metadata.integer("rope.dimension_count")
    if rotating > _MOST_ROTATING:
        raise metadata.error("rope.dimension_count", f"is not supported; allowed: at most {_MOST_ROTATING}")
    has_latent = metadata.get("attention.q_lora_rank") not in (None, 0)
    query_rank = metadata.integer("attention.q_lora_rank") if has_latent else None
    rank = metadata.integer("attention.kv_lora_rank")
    size, values = _gguf_sizes(metadata, heads, rotating, rank)
    scale = _gguf_scale(metadata)
    same = {"attention.key_length": size, "attention.value_length": size, "attention.head_count_kv": heads}
    # Cosines and sines have no factor, if scores do.
    plain = metadata.replacing({**same, _LOG_MULTIPLIER: None if scale is None else 1.0})
    spec = decoder_from_metadata(plain, architecture, hints, partial=True)
    score_scale = _gguf_score_scale(metadata, spec, scale)
    scaled_by = "" if score_scale is None else metadata.described(_LOG_MULTIPLIER)
    latent = LatentSpec(rank, query_rank, _EPS, values, scaled_by)
    return replace(spec, latent=latent, attention_scale=score_scale)


def _gguf_sizes(metadata: ConfigFields, heads: int, rotating: int, rank: int) -> tuple[int, int]:
    """Return the sizes of keys and of values of a head.

    Where files have a matrix for each, they count one head of keys, of the size of the latent and of what rotates.
    """
    key, value, kv_heads = "attention.key_length", "attention.value_length", "attention.head_count_kv"
    given = [metadata.get(f"{name}_mla") is not None for name in (key, value)]
    end = "_mla" if any(given) else ""
    size = metadata.integer(f"{key}{end}", minimum=rotating + 1, maximum=rotating + _MOST_STILL)
    if size % 2:
        raise metadata.error(f"{key}{end}", "must be even, for rotary embeddings")
    values = metadata.integer(f"{value}{end}", maximum=size)
    allowed = (1, heads) if end else (heads,)
    if metadata.integer(kv_heads, heads) not in allowed:
        few = f"1 or {heads}" if end else f"{heads}, or 1 with {key}_mla"
        raise metadata.error(kv_heads, f"is not supported: {heads} heads have keys of their own; allowed: {few}")
    if end:
        for name, parts, wide in (
            (key, "attention.kv_lora_rank + rope.dimension_count", rank + rotating),
            (value, "attention.kv_lora_rank", rank),
        ):
            if metadata.integer(name, wide) != wide:
                raise metadata.error(name, f"contradicts {parts} = {wide}, which it is beside {name}_mla")
    return size, values


def _gguf_scale(metadata: ConfigFields) -> float | None:
    """Return mscale_all_dim of YaRN; None: there is none."""
    given = metadata.get(_LOG_MULTIPLIER)
    if given is None or (given == 0 and not isinstance(given, bool)):
        return None
    # Files hold a tenth of it, and no mscale: DeepSeek's configs have the same number for both.
    scale = 10 * metadata.number(_LOG_MULTIPLIER)
    if scale > MOST_MSCALE:
        raise metadata.error(_LOG_MULTIPLIER, f"is out of range; allowed: at most {MOST_MSCALE / 10:g}")
    return scale


def _gguf_score_scale(metadata: ConfigFields, spec: DecoderSpec, scale: float | None) -> float | None:
    """Return the factor of products of queries and keys; see `_score_scale`."""
    (rope,) = spec.ropes
    if scale is None or rope.scaling is RopeScalingType.MODEL:
        return None
    kind = metadata.get("rope.scaling.type")
    if kind != "yarn":
        found = "without rope.scaling.type" if kind is None else f"with rope.scaling.type = {shown(kind)}"
        raise metadata.error(_LOG_MULTIPLIER, f"is not supported {found}; allowed: with yarn")
    more = yarn_attention_factor(rope.factor, scale)
    return float(spec.head_dim**-0.5 * more * more)
