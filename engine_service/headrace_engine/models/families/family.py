"""A family of architectures: how its config describes a decoder, and how its files name tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import INT32, ConfigFields
from headrace_engine.models.files import FLOATS, GROUPED, Assembly, StoredTensor
from headrace_engine.models.layout import GGUF_LAYOUT, HF_LAYOUT, FileLayout, absent, wrong_shape
from headrace_engine.models.spec import DecoderSpec, LayerSpec

MAX_LAYERS = 1_000
"""Maximum number of layers: more than any decoder has, so that a larger number is a damaged config."""


@dataclass(frozen=True, slots=True)
class GgufHints:
    """Properties of a GGUF model that its tensors and vocabulary show and its metadata does not.

    Attributes:
        names: names of all tensors in the file.
        vocab_size: number of tokens in the vocabulary; None if the file has none.
        frequency_factors: divisors of the inverse frequencies; empty if there is no tensor with them.
        long_factors: the same for long sequences.
    """

    names: Set[str]
    vocab_size: int | None
    frequency_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """Architectures with the same config fields and tensor names.

    Attributes:
        from_config: readers of config.json, by the name in its `architectures`.
        from_metadata: readers of GGUF metadata, by its `general.architecture`.
        hf, gguf: how files of each format hold the tensors.
        apart: returns the tensors of a Hugging Face checkpoint of a decoder as `hf` names them, where its files hold
            some in another way; it raises BadModel, naming the source of the decoder, where shapes differ.
        gguf_apart: the same for GGUF files.
        others: beginnings of the names of tensors of other parts, which a Hugging Face checkpoint may hold beside the
            decoder, and which are left out.
        derived: ends of the names of tensors that follow from the config, besides those of rotary embeddings.
        copies: names under which those parts hold a tensor of the decoder too, and its own name.
        note: what an install says of these architectures; "" for nothing.
    """

    from_config: Mapping[str, Callable[[ConfigFields], DecoderSpec]]
    from_metadata: Mapping[str, Callable[[ConfigFields, GgufHints], DecoderSpec]]
    hf: FileLayout = HF_LAYOUT
    gguf: FileLayout = GGUF_LAYOUT
    apart: Callable[[DecoderSpec, Mapping[str, StoredTensor], str], dict[str, StoredTensor]] | None = None
    gguf_apart: Callable[[DecoderSpec, Mapping[str, StoredTensor], str], dict[str, StoredTensor]] | None = None
    others: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def same_layers(count: int, window: int | None = None) -> tuple[LayerSpec, ...]:
    """Return layers with the same window."""
    return (LayerSpec(window=window),) * count


def rotating_windows(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Return layers of which those with a window rotate, and the others do not."""
    return tuple(replace(layer, rope=None if layer.window is None else 0) for layer in layers)


def check_absent(fields: ConfigFields, names: Sequence[str]) -> None:
    """Refuse unsupported settings that would change what is computed.

    Raises:
        BadModel: one of the names has a value other than null, zero, false or empty.
    """
    for name in names:
        if fields.get(name) not in (None, 0, 0.0, False, [], ""):
            raise fields.error(name, "is not supported for this architecture")


def check_not_null(fields: ConfigFields, names: Sequence[str]) -> None:
    """Refuse nulls in place of settings that the architecture's own code must have, or reads as other than absent.

    Raises:
        BadModel: one of the names has the value null.
    """
    for name in names:
        if fields.has(name) and fields.get(name) is None:
            raise BadModel(
                f"{fields.source}: {fields.prefix}{name} = null is not supported; leave it out for the default"
            )


def check_width(fields: ConfigFields, name: str, heads: int, head_dim: int) -> None:
    """Refuse heads that together are wider than kernels count.

    Raises:
        BadModel: names the field.
    """
    if heads * head_dim > INT32:
        text = f"makes {heads * head_dim} entries of all heads with a head's size of {head_dim}"
        raise fields.error(name, f"{text}; allowed: at most {INT32}")


def read_kv_heads(fields: ConfigFields, name: str, heads: int) -> int:
    """Return the number of heads of keys; by default, that of queries.

    Raises:
        BadModel: it does not divide the number of query heads.
    """
    kv_heads = fields.integer(name, heads)
    if heads % kv_heads:
        raise fields.error(name, f"must divide the number of query heads, {heads}")
    return kv_heads


def heads_apart(
    spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str, joined: str
) -> dict[str, StoredTensor]:
    """Return the tensors with one for each of queries, keys and values, "q", "k" and "v" in place of a joined one.

    Args:
        joined: name of the tensor in which these stand head by head, without "weight"; {i} is the layer.

    Raises:
        BadModel: it is absent, has another shape, or holds neither numbers nor rows that are assembled.
    """
    found, missing = dict(tensors), []
    parts = joined.rpartition(".")[0]
    for layer in range(spec.num_layers):
        for kind in ("weight", "bias"):
            name = f"{joined.format(i=layer)}.{kind}"
            if name in found:
                found |= {each.name: each for each in _of_heads(found.pop(name), spec, source)}
            elif (kind == "weight" or spec.qkv_bias) and f"{parts.format(i=layer)}.q.{kind}" not in found:
                missing.append(name)
    if missing and tensors:
        raise absent(missing, spec, dict.fromkeys(each.file.name for each in tensors.values()), source)
    return found


def _of_heads(joined: StoredTensor, spec: DecoderSpec, source: str) -> Iterator[StoredTensor]:
    """Yield queries, keys and values. With each head of keys stand the queries that read it, and its values."""
    own = spec.num_heads // spec.num_kv_heads
    group, inner = (own + 2) * spec.head_dim, joined.shape[1:]
    expected = (spec.num_kv_heads * group, *((spec.hidden_size,) if inner else ()))
    if joined.shape != expected:
        raise wrong_shape(joined, expected, spec, source)
    if joined.assembly is None and joined.storage not in FLOATS:
        raise joined.error(f"is {joined.storage}; supported are {', '.join(FLOATS)}")
    for part, first, heads in (("q", 0, own), ("k", own, 1), ("v", own + 1, 1)):
        begin, height = first * spec.head_dim, heads * spec.head_dim
        rest = joined.rows(begin, joined.shape[0] - begin)
        count = spec.num_kv_heads * height
        made = Assembly(GROUPED, (rest,), group, height=height)
        size = joined.nbytes // joined.shape[0] * count
        *before, _, kind = joined.name.split(".")
        yield replace(joined, name=".".join((*before, part, kind)), shape=(count, *inner), nbytes=size, assembly=made)
