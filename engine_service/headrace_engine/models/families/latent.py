"""Multi-head latent attention: what configs say of it, and the heads of files arranged as every decoder has them.

In files, what rotates of a head of queries stands last, keys and values of a head stand in one matrix, and values may
be shorter than keys. Here what rotates stands first, and values are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import check_width
from headrace_engine.models.families.from_config import decoder_from_config
from headrace_engine.models.files import FLOATS, PLACED, PLACED_COLUMNS, SPREAD, Assembly, StoredTensor
from headrace_engine.models.layout import HF_NAMES, wrong_shape
from headrace_engine.models.rope.reading import (
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
_NONE = -1
_PREFIX = "model.layers.{i}.self_attn."
_OWN = (*(f"{name}_heads.weight" for name in "qkvo"), "k_spread.weight", "o_heads.bias")
"""Ends of the names of what is made of the matrices of other programs."""

LATENT_NAMES: Mapping[str, str] = {
    **HF_NAMES,
    "q_latent": f"{_PREFIX}q_a_proj.weight",
    "q_latent_norm": f"{_PREFIX}q_a_layernorm.weight",
    "latent": f"{_PREFIX}kv_a_proj_with_mqa.weight",
    "k_shared": f"{_PREFIX}kv_a_proj_with_mqa.weight",
    "latent_norm": f"{_PREFIX}kv_a_layernorm.weight",
    **{name: f"{_PREFIX}{name}_heads.weight" for name in ("q", "k", "v", "o")},
    "k_spread": f"{_PREFIX}k_spread.weight",
}
"""Names of Hugging Face checkpoints, once heads are arranged."""


def decoder_with_latents(config: ConfigFields, architecture: str, **options: Any) -> DecoderSpec:
    """Read the fields that decoders with latent attention share.

    Args:
        options: see `decoder_from_config`.

    Raises:
        BadModel: a field is absent, of the wrong type or not supported; names it.
    """
    for name in ("quantization_config", "compression_config"):
        if (quantized := config.table(name)) is not None:
            text = "is not supported: heads of this architecture are arranged from numbers, not codes"
            raise quantized.error("quant_method", text)
    rotating = config.integer("qk_rope_head_dim", maximum=_MOST_ROTATING)
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
    return replace(
        spec,
        head_dim=head_dim,
        attention_scale=_score_scale(config, spec, head_dim),
        qkv_bias=has_bias,
        output_bias=has_bias,
        latent=LatentSpec(config.integer("kv_lora_rank"), query_rank, _EPS, values),
    )


def _score_scale(config: ConfigFields, spec: DecoderSpec, head_dim: int) -> float | None:
    """Return the factor of products of queries and keys if YaRN adds the square of its own; None: it does not."""
    scaling = scaling_table(config)
    if scaling is None or not scaling.get("mscale_all_dim") or (kind := scaling_type(scaling)) == "default":
        return None
    if kind != "yarn":
        raise scaling.error("mscale_all_dim", f"is not supported with {scaling_type_name(scaling)} = {kind!r}")
    more = yarn_attention_factor(spec.ropes[0].factor, yarn_scale(scaling, "mscale_all_dim"))
    return float(head_dim**-0.5 * more * more)


def heads_arranged(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint with heads as decoders have them. Files of our own have them so already.

    Raises:
        BadModel: a tensor is absent, has another shape, or holds no numbers.
    """
    found = dict(tensors)
    for layer in range(spec.num_layers):
        prefix = _PREFIX.format(i=layer)
        joined = {f"{prefix}{name}.weight": (name, shape) for name, shape in _joined_shapes(spec).items()}
        bias = f"{prefix}o_proj.bias"
        raw = [name for name in (*joined, *((bias,) if spec.output_bias else ())) if name in found]
        arranged = [name for name in (f"{prefix}{own}" for own in _OWN) if name in found]
        if raw and arranged:
            text = (
                f"stands beside {arranged[0]}: heads of a layer may be those of other programs, or arranged, not both"
            )
            raise found[raw[0]].error(text)
        if arranged:
            continue
        for file_name, (name, shape) in joined.items():
            tensor = found.pop(file_name, None)
            if tensor is None:
                raise BadModel(f"{source}: {spec.architecture} needs {file_name}, which is absent")
            _check(tensor, shape, spec, source)
            found |= {each.name: each for each in _arranged(spec, tensor, name, prefix)}
        if bias in raw:
            name = f"{prefix}o_heads.bias"
            found[name] = replace(found.pop(bias), name=name)
    return found


def _joined_shapes(spec: DecoderSpec) -> Mapping[str, tuple[int, int]]:
    """Return the shapes of the matrices with heads in files."""
    assert spec.latent is not None
    latent, heads, hidden = spec.latent, spec.num_heads, spec.hidden_size
    return {
        "q_b_proj" if latent.query_rank else "q_proj": (spec.query_width, latent.query_rank or hidden),
        "kv_b_proj": (heads * (spec.head_dim - spec.rotary_dim + latent.value_dim), latent.rank),
        "o_proj": (hidden, heads * latent.value_dim),
    }


def _check(tensor: StoredTensor, shape: tuple[int, int], spec: DecoderSpec, source: str) -> None:
    if tensor.shape != shape:
        raise wrong_shape(tensor, shape, spec, source)
    if tensor.assembly is not None or tensor.storage not in FLOATS:
        raise tensor.error(f"is {tensor.storage}; supported are {', '.join(FLOATS)}")


def _arranged(spec: DecoderSpec, tensor: StoredTensor, name: str, prefix: str) -> Iterator[StoredTensor]:
    """Yield the matrices that are made of one of a file."""
    assert spec.latent is not None
    size, turning, values = spec.head_dim, spec.rotary_dim, spec.latent.value_dim
    still, padding = size - turning, (_NONE,) * (size - values)
    heads, inner = spec.query_width, tensor.shape[1]

    def made(part: str, layout: str, shape: tuple[int, int], group: int, places: tuple[int, ...]) -> StoredTensor:
        nbytes = tensor.nbytes // tensor.elements * shape[0] * shape[1]
        assembly = Assembly(layout, (tensor,), group, places=places)
        return replace(tensor, name=f"{prefix}{part}.weight", shape=shape, nbytes=nbytes, assembly=assembly)

    if name == "o_proj":
        yield made("o_heads", PLACED_COLUMNS, (tensor.shape[0], heads), values, (*range(values), *padding))
    elif name == "kv_b_proj":
        group = still + values
        yield made("k_heads", PLACED, (heads, inner), group, ((_NONE,) * turning + tuple(range(still))))
        yield made("v_heads", PLACED, (heads, inner), group, (*range(still, group), *padding))
        yield made("k_spread", SPREAD, (heads, turning), 0, (*range(turning), *(_NONE,) * still))
    else:
        yield made("q_heads", PLACED, (heads, inner), size, (*range(still, size), *range(still)))
