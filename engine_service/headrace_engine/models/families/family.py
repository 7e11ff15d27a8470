"""A family of architectures: how its config describes a decoder, and how its files name tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace_engine.models.config_fields import INT32, ConfigFields
from headrace_engine.models.rope.reading import rope_from_config, rope_from_metadata
from headrace_engine.models.spec import DecoderSpec, LayerSpec

MAX_LAYERS = 1_000
"""Maximum number of layers: more than any decoder has, so that a larger number is a damaged config."""


@dataclass(frozen=True, slots=True)
class GgufHints:
    """Properties of a GGUF model that its tensors and vocabulary show and its metadata does not.

    Attributes:
        names: names of all tensors in the file.
        vocab_size: number of tokens in the vocabulary; None if the file has none.
        frequency_factors: values of the rope_freqs tensor; empty if there is none.
    """

    names: Collection[str]
    vocab_size: int | None
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """Architectures with the same config fields and tensor names.

    Attributes:
        from_config: readers of config.json, by the name in its `architectures`.
        from_metadata: readers of GGUF metadata, by its `general.architecture`.
        hf_names, gguf_names: names of tensors, by the last part of the canonical name; {i} is the layer.
        interleaved_in_gguf: GGUF files store the rows of q and k with rotary pairs adjacent.
    """

    from_config: Mapping[str, Callable[[ConfigFields], DecoderSpec]]
    from_metadata: Mapping[str, Callable[[ConfigFields, GgufHints], DecoderSpec]]
    hf_names: Mapping[str, str]
    gguf_names: Mapping[str, str]
    interleaved_in_gguf: bool = False


def decoder_from_config(config: ConfigFields, architecture: str, *, head_dim: int | None = None) -> DecoderSpec:
    """Read the fields of a config.json that Llama-like models share.

    Args:
        head_dim: size of a head where the config names none; None: the hidden size shared among the heads.

    Raises:
        BadModel: a field is absent, of the wrong type or not supported; names it.
    """
    _check_activation(config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = _head_dim(config, hidden, heads, head_dim)
    _check_width(config, "num_attention_heads", heads, head_dim)
    max_length = config.integer("max_position_embeddings")
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        ropes=(rope_from_config(config, head_dim, max_length),),
        layers=same_layers(config.integer("num_hidden_layers", maximum=MAX_LAYERS)),
        max_length=max_length,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def decoder_from_metadata(metadata: ConfigFields, architecture: str, hints: GgufHints) -> DecoderSpec:
    """Read the GGUF metadata that Llama-like models share; the names of tensors show biases and a tied head.

    Raises:
        BadModel: a key is absent, of the wrong type or not supported; names it.
    """
    hidden, heads = metadata.integer("embedding_length"), metadata.integer("attention.head_count")
    head_dim = _gguf_head_dim(metadata, hidden, heads)
    _check_width(metadata, "attention.head_count", heads, head_dim)
    layers = metadata.integer("block_count", maximum=MAX_LAYERS)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=metadata.integer("vocab_size", hints.vocab_size),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(metadata, "attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=metadata.integer("feed_forward_length"),
        norm_eps=metadata.number("attention.layer_norm_rms_epsilon"),
        ropes=(rope_from_metadata(metadata, head_dim, hints.frequency_factors),),
        layers=same_layers(layers, _gguf_window(metadata)),
        max_length=metadata.integer("context_length"),
        qkv_bias="blk.0.attn_q.bias" in hints.names,
        output_bias="blk.0.attn_output.bias" in hints.names,
        mlp_bias="blk.0.ffn_gate.bias" in hints.names,
        tied_head="output.weight" not in hints.names,
    )


def same_layers(count: int, window: int | None = None) -> tuple[LayerSpec, ...]:
    """Return layers with the same window."""
    return (LayerSpec(window=window),) * count


def sliding_layers(config: ConfigFields, count: int) -> list[bool] | None:
    """Return by layer whether `layer_types` says that it has a window; None if the field is absent.

    Raises:
        BadModel: the field is not a list of `count` known types.
    """
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in known for kind in kinds):
        raise config.error("layer_types", f"must list {count} of {', '.join(known)}")
    return [kind == "sliding_attention" for kind in kinds]


def check_absent(metadata: ConfigFields, names: Sequence[str]) -> None:
    """Refuse unsupported settings that would change what is computed.

    Raises:
        BadModel: one of the names has a value other than null, zero, false or empty.
    """
    for name in names:
        if metadata.get(name) not in (None, 0, 0.0, False, [], ""):
            raise metadata.error(name, "is not supported for this architecture")


def _check_activation(config: ConfigFields) -> None:
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise config.error("hidden_act", "is not supported; supported is silu")


def _head_dim(config: ConfigFields, hidden: int, heads: int, default: int | None) -> int:
    if config.get("head_dim") is None and default is None and hidden % heads:
        raise config.error("num_attention_heads", f"does not divide hidden_size = {hidden}, and there is no head_dim")
    head_dim = config.integer("head_dim", default or hidden // heads)
    if head_dim % 2:
        raise config.error("head_dim", f"must be even, not {head_dim}, for rotary embeddings")
    return head_dim


def _gguf_head_dim(metadata: ConfigFields, hidden: int, heads: int) -> int:
    if metadata.get("attention.key_length") is None and hidden % heads:
        raise metadata.error("attention.head_count", f"does not divide embedding_length = {hidden}")
    head_dim = metadata.integer("attention.key_length", hidden // heads)
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        raise metadata.error("attention.value_length", f"must equal attention.key_length = {head_dim}")
    if head_dim % 2:
        raise metadata.error("attention.key_length", f"must be even, not {head_dim}, for rotary embeddings")
    return head_dim


def _check_width(config: ConfigFields, name: str, heads: int, head_dim: int) -> None:
    if heads * head_dim > INT32:
        text = f"makes {heads * head_dim} entries of all heads with a head's size of {head_dim}"
        raise config.error(name, f"{text}; allowed: at most {INT32}")


def _kv_heads(config: ConfigFields, name: str, heads: int) -> int:
    kv_heads = config.integer(name, heads)
    if heads % kv_heads:
        raise config.error(name, f"must divide the number of query heads, {heads}")
    return kv_heads


def _gguf_window(metadata: ConfigFields) -> int | None:
    name = "attention.sliding_window"
    return metadata.integer(name) if metadata.get(name) not in (None, 0) else None
