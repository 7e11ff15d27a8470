"""GGUF files: one file with metadata, vocabulary and tensors."""

from __future__ import annotations

import json
import os
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import MOST_NUMBER, ConfigFields
from headrace_engine.models.families import family_of_gguf
from headrace_engine.models.families.family import Family, GgufHints
from headrace_engine.models.files import ModelFiles, StoredTensor, TensorInfo
from headrace_engine.models.layout import bind, name_some, predicting
from headrace_engine.models.loaders.digest import digest_of, snapshot_commit
from headrace_engine.models.loaders.gguf_header import GgufHeader, read_header
from headrace_engine.models.loaders.gguf_types import READABLE_TYPES
from headrace_engine.models.loaders.opening import open_model_file
from headrace_engine.models.rope.reading import LEAST_FACTOR, is_factor
from headrace_engine.models.spec import DecoderSpec

_ROPE_FREQS = "rope_freqs.weight"
_ROPE_SHORT, _ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
_FACTORS = (_ROPE_FREQS, _ROPE_SHORT, _ROPE_LONG)
"""Names of the tensors with divisors of the inverse frequencies."""
_HARMLESS_SUFFIX = ".attn_rot_embd"
_TOUCHES_RESULTS = ("blk.", "output", "token_embd", "token_types", "position_embd", "rope_factors")
"""Prefixes of tensors that take part in the computation: an unknown one cannot be ignored."""

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_LONGEST_ARRAY, _LONGEST_TEXT = 64, 2**16
"""Maximum length of arrays and texts that are included in the displayed metadata."""

_MOST_FACTORS = 2**12
"""Maximum number of frequency factors: more than half the size of any head."""


def open_file(path: Path) -> ModelFiles:
    """Open the model in a GGUF file.

    Raises:
        BadModel: the file is damaged or of an unsupported kind, or metadata and tensors do not fit together.
    """
    header = read_header(path)
    _check_whole(header)
    family, spec = _spec(header)
    tensors, warnings = _bind(header, family, spec)
    tokenizer = ConfigFields(header.metadata, path.name, "tokenizer.ggml.")
    return ModelFiles(
        format=ModelFormat.GGUF,
        path=path,
        spec=spec,
        config_json=json.dumps(_shown(header.metadata)),
        generation={name: header.metadata[key] for key, name in _SAMPLING.items() if key in header.metadata},
        tensors=tensors,
        revision=snapshot_commit(path.parent) or _digest(header),
        tokenizer_path=path,
        warnings=tuple(warnings),
        chat_template=_template(header, "tokenizer.chat_template"),
        named_ends={path.name: _end_ids(tokenizer, spec.vocab_size)},
        bos_id=_token_id(tokenizer, "bos_token_id", spec.vocab_size),
        tool_template=_template(header, "tokenizer.chat_template.tool_use"),
    )


def _template(header: GgufHeader, key: str) -> str | None:
    template = header.metadata.get(key)
    return template if isinstance(template, str) else None


def _check_whole(header: GgufHeader) -> None:
    split = ConfigFields(header.metadata, header.path.name).integer("split.count", 1, minimum=0)
    if split > 1:
        text = f"is one of {split} parts (split.count); join them into one file first"
        raise BadModel(f"{header.path.name}: {text}")


def _spec(header: GgufHeader) -> tuple[Family, DecoderSpec]:
    source = header.path.name
    architecture = ConfigFields(header.metadata, source).text("general.architecture")
    family = family_of_gguf(architecture, source)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    hints = GgufHints(
        names=header.tensors.keys(),
        vocab_size=len(tokens) if isinstance(tokens, list) else None,
        frequency_factors=_factors(header, _ROPE_FREQS) or _factors(header, _ROPE_SHORT),
        long_factors=_factors(header, _ROPE_LONG),
    )
    fields = ConfigFields(header.metadata, source, f"{architecture}.")
    spec = family.from_metadata[architecture](fields, hints)
    _check_factors(header, spec)
    return family, spec


def _check_factors(header: GgufHeader, spec: DecoderSpec) -> None:
    for tensor in (header.tensors[name] for name in _FACTORS if name in header.tensors):
        if tensor.elements != spec.rotary_dim // 2:
            raise tensor.error(f"has {tensor.elements} values, expected half of what rotates, {spec.rotary_dim}")


def _bind(header: GgufHeader, family: Family, spec: DecoderSpec) -> tuple[dict[str, TensorInfo], list[str]]:
    source, stored = header.path.name, header.tensors
    if family.gguf_apart is not None:
        stored = family.gguf_apart(spec, stored, "its metadata")
    tensors, rest = bind(spec, stored, family.gguf, "its metadata", [source])
    for info in tensors.values():
        if info.stored.storage not in READABLE_TYPES:
            text = f"has type {info.stored.storage}, which is not supported"
            raise info.stored.error(f"{text}; supported are {', '.join(sorted(READABLE_TYPES))}")
    return tensors, _left_over(rest, source, spec.num_layers)


def _left_over(rest: Sequence[StoredTensor], source: str, layers: int) -> list[str]:
    """Return a warning about unused tensors.

    Raises:
        BadModel: one of them would take part in the computation.
    """
    extra = [tensor.name for tensor in rest if tensor.name not in _FACTORS and _HARMLESS_SUFFIX not in tensor.name]
    further = {tensor.name for tensor in predicting(rest, layers)}
    needed = [name for name in extra if name.startswith(_TOUCHES_RESULTS) and name not in further]
    if needed:
        raise BadModel(f"{source}: tensors that this architecture does not have: {name_some(needed)}")
    return [f"{source}: tensors that are not known and not used: {name_some(extra)}"] if extra else []


def _factors(header: GgufHeader, name: str) -> tuple[float, ...]:
    tensor = header.tensors.get(name)
    if tensor is None:
        return ()
    if tensor.storage != "F32" or len(tensor.shape) != 1 or tensor.elements > _MOST_FACTORS:
        text = f"expected F32 of one dimension, and at most {_MOST_FACTORS} values"
        raise tensor.error(f"is {tensor.storage} {list(tensor.shape)}, {text}")
    with open_model_file(header.path) as file:
        file.seek(tensor.offset)
        values = struct.unpack(f"<{tensor.elements}f", file.read(tensor.nbytes))
    if not all(map(is_factor, values)):
        raise tensor.error(f"holds values that are not from {LEAST_FACTOR:g} to {MOST_NUMBER:g}")
    return values


def _end_ids(tokenizer: ConfigFields, vocab_size: int) -> tuple[int, ...]:
    ids = [_token_id(tokenizer, key, vocab_size) for key in _END_KEYS]
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _token_id(tokenizer: ConfigFields, name: str, vocab_size: int) -> int | None:
    if tokenizer.get(name) is None:
        return None
    return tokenizer.integer(name, minimum=0, maximum=vocab_size - 1)


def _shown(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for display: long arrays, such as the vocabulary, and texts are replaced by their length."""
    return {key: _shown_value(value) for key, value in metadata.items()}


def _shown_value(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"text of {len(value)} characters"
    if not isinstance(value, list | array):
        return value
    short = len(value) <= _LONGEST_ARRAY and all(len(str(each)) <= _LONGEST_TEXT for each in value)
    return list(value) if short else f"array of {len(value)}"


def _digest(header: GgufHeader) -> str:
    with open_model_file(header.path) as file:
        described, size = file.read(header.size), os.fstat(file.fileno()).st_size
    return digest_of([(header.path.name, size, described)])
