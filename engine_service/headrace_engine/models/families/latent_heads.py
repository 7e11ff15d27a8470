"""Multi-head latent attention: the heads of files arranged as every decoder has them.

In files, what rotates of a head of queries stands last, keys and values of a head may stand in one matrix, and values
may be shorter than keys. Here what rotates stands first, and values are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace_engine.models.files import FLOATS, PLACED, PLACED_COLUMNS, SPREAD, TURNED, Assembly, StoredTensor
from headrace_engine.models.layout import GGUF_NAMES, HF_NAMES, absent, wrong_shape
from headrace_engine.models.loaders.gguf_types import BLOCKS, READABLE_TYPES
from headrace_engine.models.spec import DecoderSpec

_NONE = -1


@dataclass(frozen=True, slots=True)
class _Files:
    """Where files of a format hold the matrices with heads of a layer.

    Attributes:
        prefix: beginning of their names; {i} is the layer.
        q, q_latent: what follows in that of queries, made of the hidden state or of their latent.
        kv: the same of keys and values as one.
        k, v: the same of each; "": the format has them as one alone.
        o: the same of the last one.
        storages: allowed storage types.
    """

    prefix: str
    q: str
    q_latent: str
    kv: str
    k: str
    v: str
    o: str
    storages: Sequence[str]

    def own(self) -> Mapping[str, str]:
        """Return the names of what is made of them, by the canonical name without its numbers."""
        ends = {**{name: f"{name}_heads" for name in "qkvo"}, "k_spread": "k_spread"}
        return {name: f"{self.prefix}{end}.weight" for name, end in ends.items()}

    def either(self, name: str, prefix: str) -> str:
        """Return the name, and beside that of keys and values as one those that may stand in its place."""
        two = f"{prefix}{self.k}.weight and {prefix}{self.v}.weight"
        return f"{name} (or {two})" if self.k and name == f"{prefix}{self.kv}.weight" else name


_HF = _Files("model.layers.{i}.self_attn.", "q_proj", "q_b_proj", "kv_b_proj", "", "", "o_proj", FLOATS)
_GGUF = _Files("blk.{i}.attn_", "q", "q_b", "kv_b", "k_b", "v_b", "output", tuple(sorted(READABLE_TYPES)))

LATENT_NAMES: Mapping[str, str] = {
    **HF_NAMES,
    "q_latent": f"{_HF.prefix}q_a_proj.weight",
    "q_latent_norm": f"{_HF.prefix}q_a_layernorm.weight",
    "latent": f"{_HF.prefix}kv_a_proj_with_mqa.weight",
    "k_shared": f"{_HF.prefix}kv_a_proj_with_mqa.weight",
    "latent_norm": f"{_HF.prefix}kv_a_layernorm.weight",
    **_HF.own(),
    "o_bias": f"{_HF.prefix}{_HF.o}.bias",
}
"""Names of Hugging Face checkpoints, once heads are arranged."""

LATENT_GGUF_NAMES: Mapping[str, str] = {
    **GGUF_NAMES,
    "q_latent": f"{_GGUF.prefix}q_a.weight",
    "q_latent_norm": f"{_GGUF.prefix}q_a_norm.weight",
    "latent": f"{_GGUF.prefix}kv_a_mqa.weight",
    "k_shared": f"{_GGUF.prefix}kv_a_mqa.weight",
    "latent_norm": f"{_GGUF.prefix}kv_a_norm.weight",
    **_GGUF.own(),
    "o_bias": f"{_GGUF.prefix}{_GGUF.o}.bias",
}
"""Names in GGUF files, once heads are arranged."""


def heads_arranged(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint with heads as decoders have them. Files of our own have them so already.

    Raises:
        BadModel: a tensor is absent, has another shape, or a storage type that is not read.
    """
    return _all_arranged(spec, tensors, source, _HF)


def gguf_heads_arranged(spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors of a GGUF file with heads as decoders have them; see `heads_arranged`."""
    return _all_arranged(spec, tensors, source, _GGUF)


def _all_arranged(
    spec: DecoderSpec, tensors: Mapping[str, StoredTensor], source: str, files: _Files
) -> dict[str, StoredTensor]:
    found = dict(tensors)
    for layer in range(spec.num_layers):
        prefix = files.prefix.format(i=layer)
        shapes = {f"{prefix}{name}.weight": held for name, held in _shapes(spec, files, found, prefix).items()}
        raw = [name for name in shapes if name in found]
        arranged = [name for name in (each.format(i=layer) for each in files.own().values()) if name in found]
        if raw and arranged:
            text = (
                f"stands beside {arranged[0]}: heads of a layer may be those of other programs, or arranged, not both"
            )
            raise found[raw[0]].error(text)
        if arranged:
            continue
        if missing := [files.either(name, prefix) for name in shapes if name not in found]:
            raise absent(missing, spec, dict.fromkeys(each.file.name for each in tensors.values()), source)
        for file_name, (part, shape) in shapes.items():
            tensor = found.pop(file_name)
            _check(tensor, shape, spec, source, files.storages)
            found |= {each.name: each for each in _arranged(spec, tensor, part, prefix)}
    return found


def _shapes(
    spec: DecoderSpec, files: _Files, found: Mapping[str, StoredTensor], prefix: str
) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Return what the matrices with heads of a layer hold, and their shapes.

    Raises:
        BadModel: keys and values are there both as one matrix and as two.
    """
    assert spec.latent is not None
    latent, heads, hidden = spec.latent, spec.num_heads, spec.hidden_size
    still, values, rank = spec.head_dim - spec.rotary_dim, latent.value_dim, latent.rank
    queries = files.q_latent if latent.query_rank else files.q
    joined: dict[str, tuple[str, tuple[int, ...]]] = {files.kv: ("kv", (heads * (still + values), rank))}
    each: dict[str, tuple[str, tuple[int, ...]]] = {
        files.k: ("k", (heads, rank, still)),
        files.v: ("v", (heads, values, rank)),
    }
    one = found.get(f"{prefix}{files.kv}.weight")
    two = [name for name in (f"{prefix}{end}.weight" for end in each if end) if name in found]
    if one is not None and two:
        raise one.error(f"stands beside {two[0]}: keys and values of a layer may be in one matrix or in two, not both")
    return {
        queries: ("q", (spec.query_width, latent.query_rank or hidden)),
        **(each if two else joined),
        files.o: ("o", (hidden, heads * values)),
    }


def _check(
    tensor: StoredTensor, shape: tuple[int, ...], spec: DecoderSpec, source: str, storages: Sequence[str]
) -> None:
    if tensor.shape != shape:
        raise wrong_shape(tensor, shape, spec, source)
    if tensor.assembly is not None or tensor.storage not in storages:
        raise tensor.error(f"is {tensor.storage}; supported are {', '.join(storages)}")


def _arranged(spec: DecoderSpec, tensor: StoredTensor, part: str, prefix: str) -> Iterator[StoredTensor]:
    """Yield the matrices that are made of one of a file.

    Blocks stay as they are where rows are placed, and columns where heads are whole blocks; else they become numbers.
    """
    assert spec.latent is not None
    turning, values, heads = spec.rotary_dim, spec.latent.value_dim, spec.query_width
    still, padding = spec.head_dim - turning, (_NONE,) * (spec.head_dim - values)
    inner = tensor.shape[-1]
    flat = replace(tensor, shape=(tensor.elements // inner, inner))
    numbers = tensor.storage if tensor.storage in FLOATS else "F32"

    def made(
        name: str, layout: str, shape: tuple[int, int], group: int, places: tuple[int, ...], storage: str = numbers
    ) -> StoredTensor:
        kind, assembly = BLOCKS[storage], Assembly(layout, (flat,), group, places=places)
        nbytes = shape[0] * shape[1] // kind.block * kind.bytes
        return replace(
            flat, name=f"{prefix}{name}.weight", storage=storage, shape=shape, nbytes=nbytes, assembly=assembly
        )

    keys = (_NONE,) * turning + tuple(range(still))
    if part == "o":
        block = BLOCKS[tensor.storage].block
        whole = values % block == 0 and spec.head_dim % block == 0
        size = block if whole else 1
        places = (*range(values // size), *padding[: len(padding) // size])
        storage = tensor.storage if whole else numbers
        yield made("o_heads", PLACED_COLUMNS, (tensor.shape[0], heads), values // size, places, storage)
    elif part == "k":
        yield made("k_heads", TURNED, (heads, tensor.shape[1]), still, keys)
    elif part == "kv":
        yield made("k_heads", PLACED, (heads, inner), still + values, keys, tensor.storage)
    elif part == "q":
        places = (*range(still, spec.head_dim), *range(still))
        yield made("q_heads", PLACED, (heads, inner), spec.head_dim, places, tensor.storage)
    if part in ("kv", "v"):
        first = still if part == "kv" else 0
        places = (*range(first, first + values), *padding)
        yield made("v_heads", PLACED, (heads, inner), first + values, places, tensor.storage)
        yield made("k_spread", SPREAD, (heads, turning), 0, (*range(turning), *(_NONE,) * still))
