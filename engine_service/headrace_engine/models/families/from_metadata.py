"""Reading of the GGUF metadata that families share."""

from __future__ import annotations

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import MAX_LAYERS, GgufHints, check_width, read_kv_heads, same_layers
from headrace_engine.models.rope.metadata import rope_from_metadata
from headrace_engine.models.spec import DecoderSpec, LayerSpec, NormKind


def decoder_from_metadata(
    metadata: ConfigFields, architecture: str, hints: GgufHints, *, partial: bool = False, layer_norm: bool = False
) -> DecoderSpec:
    """Read the GGUF metadata that Llama-like models share; the names of tensors show biases and a tied head.

    Args:
        partial: the family has models of which only a part of each head rotates.
        layer_norm: the norms are LayerNorm; such a family may have MLPs without a gate.

    Raises:
        BadModel: a key is absent, of the wrong type or not supported; names it.
    """
    hidden, heads = metadata.integer("embedding_length"), metadata.integer("attention.head_count")
    head_dim = _head_dim(metadata, hidden, heads)
    check_width(metadata, "attention.head_count", heads, head_dim)
    layers = metadata.integer("block_count", maximum=MAX_LAYERS)
    rope = rope_from_metadata(metadata, head_dim, hints.frequency_factors, hints.long_factors, partial=partial)
    ungated = layer_norm and "blk.0.ffn_gate.weight" not in hints.names
    return DecoderSpec(
        architecture=architecture,
        vocab_size=metadata.integer("vocab_size", hints.vocab_size),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=read_kv_heads(metadata, "attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=metadata.integer("feed_forward_length"),
        norm_eps=metadata.number(f"attention.layer_norm_{'' if layer_norm else 'rms_'}epsilon"),
        ropes=(rope,),
        layers=same_layers(layers, gguf_window(metadata)),
        max_length=metadata.integer("context_length"),
        qkv_bias=not hints.names.isdisjoint(("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")),
        output_bias="blk.0.attn_output.bias" in hints.names,
        mlp_bias=("blk.0.ffn_up.bias" if ungated else "blk.0.ffn_gate.bias") in hints.names,
        head_bias=layer_norm and "output.bias" in hints.names,
        tied_head="output.weight" not in hints.names,
        norm=NormKind.LAYER if layer_norm else NormKind.RMS,
        norm_bias=layer_norm and "output_norm.bias" in hints.names,
        mlp_gate=not ungated,
    )


def gguf_window(metadata: ConfigFields) -> int | None:
    """Return the size of windows; None if there are none."""
    name = "attention.sliding_window"
    return metadata.integer(name) if metadata.get(name) not in (None, 0) else None


def periodic_layers(metadata: ConfigFields, count: int, period: int, *, local_rope: int = 0) -> tuple[LayerSpec, ...]:
    """Return layers with windows, if there are any, except for each last one of a period.

    Args:
        period: the family's, which files may name otherwise.
        local_rope: index of the rotary embedding of layers with a window.

    Raises:
        BadModel: the pattern in the file is neither a period nor a list of `count` booleans.
    """
    window, name = gguf_window(metadata), "attention.sliding_window_pattern"
    if window is None:
        return same_layers(count)
    listed = metadata.get(name)
    if listed is None or (isinstance(listed, int) and not isinstance(listed, bool)):
        period = metadata.integer(name, period)
        listed = [(index + 1) % period != 0 for index in range(count)]
    if not isinstance(listed, list) or len(listed) != count or any(not isinstance(slide, bool) for slide in listed):
        raise metadata.error(name, f"must be a period, or list {count} booleans")
    local = LayerSpec(window=window, rope=local_rope)
    return tuple(local if slide else LayerSpec() for slide in listed)


def _head_dim(metadata: ConfigFields, hidden: int, heads: int) -> int:
    if metadata.get("attention.key_length") is None and hidden % heads:
        raise metadata.error("attention.head_count", f"does not divide embedding_length = {hidden}")
    head_dim = metadata.integer("attention.key_length", hidden // heads)
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        raise metadata.error("attention.value_length", f"must equal attention.key_length = {head_dim}")
    if head_dim % 2:
        key = "attention.key_length"
        shared = "" if metadata.get(key) is not None else f", not embedding_length / head_count = {head_dim}"
        raise metadata.error(key, f"must be even{shared}, for rotary embeddings")
    return head_dim
