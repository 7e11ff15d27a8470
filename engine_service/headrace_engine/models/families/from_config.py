"""Reading of the fields of a config.json that families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families.family import MAX_LAYERS, check_width, read_kv_heads, same_layers
from headrace_engine.models.rope.reading import DEFAULT_THETA, rope_from_config
from headrace_engine.models.spec import DecoderSpec, GateKind, LayerSpec

_GATES: Mapping[str, GateKind] = {
    "silu": GateKind.SILU,
    "swish": GateKind.SILU,
    "gelu": GateKind.GELU,
    "gelu_new": GateKind.GELU_TANH,
    "gelu_pytorch_tanh": GateKind.GELU_TANH,
}


def decoder_from_config(
    config: ConfigFields,
    architecture: str,
    *,
    head_dim: int | None = None,
    theta: float = DEFAULT_THETA,
    rotating: float | None = None,
    layer_type: str = "",
    tied: bool = False,
    activation: str = "hidden_act",
    default_activation: str = "silu",
) -> DecoderSpec:
    """Read the fields of a config.json that Llama-like models share.

    Args:
        head_dim: size of a head where the config has no head_dim; None: the hidden size shared among the heads, as a
            null means in every family.
        theta: base of the rotary embedding where the config names none.
        rotating: share of a head that rotates where the config names none; None: all of it in every model.
        layer_type: type of the layers whose rotary embedding is read, if there is one for each type.
        tied: whether the head is tied where the config does not say.
        activation: name of the field with the activation.
        default_activation: the activation where the config names none.

    Raises:
        BadModel: a field is absent, of the wrong type or not supported; names it.
    """
    if not config.flag("is_causal", True):
        raise config.error("is_causal", "is not supported: here attention looks at no later position")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = _head_dim(config, hidden, heads, head_dim)
    check_width(config, "num_attention_heads", heads, head_dim)
    max_length = config.integer("max_position_embeddings")
    rope = rope_from_config(config, head_dim, max_length, theta=theta, rotating=rotating, layer_type=layer_type)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=read_kv_heads(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        ropes=(rope,),
        layers=same_layers(config.integer("num_hidden_layers", maximum=MAX_LAYERS)),
        max_length=max_length,
        tied_head=config.flag("tie_word_embeddings", tied),
        gate=_gate(config, activation, default_activation),
    )


def windowed_layers(
    config: ConfigFields, count: int, slides: Sequence[bool], window: int, *, local_rope: int = 0
) -> tuple[LayerSpec, ...]:
    """Return layers with windows where `layer_types` says, or else where `slides` does; a null window means none.

    Args:
        count: number of layers.
        slides: by layer.
        window: size of the windows where the config names none.
        local_rope: index of the rotary embedding of layers with a window.

    Raises:
        BadModel: `layer_types` is not a list of `count` known types, or lists windows where their size is null.
    """
    listed = _listed(config, count)
    if config.has("sliding_window") and config.get("sliding_window") is None:
        if listed is not None and any(listed):
            raise config.error("sliding_window", "must be the size of the windows that layer_types lists")
        return same_layers(count)
    window = config.integer("sliding_window", window)
    local = LayerSpec(window=window, rope=local_rope)
    return tuple(local if slide else LayerSpec() for slide in (slides if listed is None else listed))


def _listed(config: ConfigFields, count: int) -> list[bool] | None:
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in known for kind in kinds):
        raise config.error("layer_types", f"must list {count} of {', '.join(known)}")
    return [kind == "sliding_attention" for kind in kinds]


def _gate(config: ConfigFields, name: str, default: str) -> GateKind:
    activation = config.text(name, default)
    if activation not in _GATES:
        raise config.error(name, f"is not supported; supported are {', '.join(_GATES)}")
    return _GATES[activation]


def _head_dim(config: ConfigFields, hidden: int, heads: int, default: int | None) -> int:
    default = None if config.has("head_dim") else default
    if config.get("head_dim") is None and default is None and hidden % heads:
        raise config.error("num_attention_heads", f"does not divide hidden_size = {hidden}, and there is no head_dim")
    head_dim = config.integer("head_dim", default or hidden // heads)
    if head_dim % 2:
        shared = "" if config.get("head_dim") is not None else f", not hidden_size / num_attention_heads = {head_dim}"
        raise config.error("head_dim", f"must be even{shared}, for rotary embeddings")
    return head_dim
