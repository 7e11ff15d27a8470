"""Codecs of runtime and generation configs, in both directions."""

from __future__ import annotations

import json
from typing import Any

from headrace_proto.v1 import generation_pb2, runtime_pb2

from headrace_engine.config import Adapter, Lease, ModelFormat, RopeScaling, RuntimeConfig
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig, LogitsProcessor
from headrace_engine.request_parts import MediaItem, ResponseFormat, ResponseFormatKind
from headrace_engine.service.convert.codec import Codec, Pair, enum_pair
from headrace_engine.service.convert.refusals import required


def _read_response_format(message: generation_pb2.ResponseFormat) -> ResponseFormat:
    kind = ResponseFormatKind(required(message, "format", "config.response_format"))
    if kind is ResponseFormatKind.CHOICE:
        return ResponseFormat(kind, choices=tuple(message.choice.choices))
    if kind is ResponseFormatKind.GRAMMAR:
        ebnf = message.grammar.syntax == generation_pb2.GRAMMAR_SYNTAX_EBNF
        return ResponseFormat(kind, message.grammar.text, ebnf=ebnf)
    if kind is ResponseFormatKind.STRUCTURAL_TAG:
        return ResponseFormat(kind, _read_structural_tag(message.structural_tag))
    return ResponseFormat(kind, "" if kind is ResponseFormatKind.JSON_OBJECT else getattr(message, kind))


def _read_structural_tag(message: generation_pb2.StructuralTag) -> str:
    structures = [{"begin": one.begin, "schema": one.schema, "end": one.end} for one in message.structures]
    older = {"triggers": list(message.triggers), "structures": structures}
    if not message.format:
        return _as_sent(older)
    return _as_sent({"format": message.format} | {name: value for name, value in older.items() if value})


def _as_sent(tag: dict[str, Any]) -> str:
    """Return a tag as JSON text, in which characters take the bytes that they took on the wire."""
    return json.dumps(tag, ensure_ascii=False)


def _write_structural_tag(text: str, message: generation_pb2.StructuralTag) -> None:
    found: dict[str, Any] = json.loads(text)
    if "format" in found:
        message.format = _json_text(found["format"])
    message.triggers.extend(found.get("triggers", ()))
    for one in found.get("structures", ()):
        message.structures.add(begin=one["begin"], schema=_json_text(one["schema"]), end=one["end"])


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _write_response_format(value: ResponseFormat, message: generation_pb2.ResponseFormat) -> None:
    if value.kind is ResponseFormatKind.JSON_OBJECT:
        message.json_object.SetInParent()
    elif value.kind is ResponseFormatKind.CHOICE:
        message.choice.choices.extend(value.choices)
        message.choice.SetInParent()
    elif value.kind is ResponseFormatKind.GRAMMAR:
        message.grammar.text = value.text
        message.grammar.syntax = (
            generation_pb2.GRAMMAR_SYNTAX_EBNF if value.ebnf else generation_pb2.GRAMMAR_SYNTAX_LARK
        )
    elif value.kind is ResponseFormatKind.STRUCTURAL_TAG:
        _write_structural_tag(value.text, message.structural_tag)
    else:
        setattr(message, value.kind, value.text)


def _read_media(message: generation_pb2.MmInfo) -> tuple[MediaItem, ...]:
    return tuple(_read_media_item(item, index) for index, item in enumerate(message.items))


def _read_media_item(item: generation_pb2.MediaItem, index: int) -> MediaItem:
    path = f"config.mm_info.items[{index}]"
    embedded = required(item, "content", path) == "embedding"
    if embedded and not item.embedding.dtype:
        raise InvalidArgument.field(f"{path}.embedding.dtype", "is not set")
    return MediaItem(
        placeholder_id=item.placeholder_id if item.HasField("placeholder_id") else None,
        data=item.embedding.data if embedded else item.data,
        mime_type=item.mime_type,
        embedding_shape=tuple(item.embedding.shape),
        embedding_dtype=_dtype_name(item.embedding.dtype) if embedded else "",
        digest=item.digest,
    )


def _dtype_name(number: generation_pb2.TensorDtype) -> str:
    return generation_pb2.TensorDtype.Name(number).removeprefix("TENSOR_DTYPE_")


def _write_media(items: tuple[MediaItem, ...], message: generation_pb2.MmInfo) -> None:
    for item in items:
        target = message.items.add(mime_type=item.mime_type, digest=item.digest, placeholder_id=item.placeholder_id)
        if item.embedding_dtype:
            dtype = f"TENSOR_DTYPE_{item.embedding_dtype}"
            embedding = generation_pb2.Tensor(dtype=dtype, shape=item.embedding_shape, data=item.data)
            target.embedding.CopyFrom(embedding)
        elif item.data:
            target.data = item.data


MODEL_FORMAT = enum_pair(runtime_pb2.DESCRIPTOR.enum_types_by_name["ModelFormat"], ModelFormat)
"""Layout of a model's files."""

LEASE = Codec(Lease, generation_pb2.Lease)
"""Seconds for which a running or ended request without a reader is retained."""

RUNTIME_CONFIG = Codec(
    RuntimeConfig,
    runtime_pb2.RuntimeConfig,
    Codec(RopeScaling, runtime_pb2.RopeScaling),
    Codec(Adapter, runtime_pb2.Adapter),
    LEASE,
)
"""Settings of a model's install."""

GENERATION_CONFIG = Codec(
    GenerationConfig,
    generation_pb2.GenerationConfig,
    LEASE,
    Codec(LogitsProcessor, generation_pb2.LogitsProcessor),
    response_format=Pair(_read_response_format, _write_response_format),
    mm_info=Pair(_read_media, _write_media),
)
"""Settings of a request's generation."""
