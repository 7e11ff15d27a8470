"""Reads structural tags, in their older and their newer form."""

from __future__ import annotations

from typing import Any

import msgspec
from headrace_proto.pure.strict_json import BadJson, read_json

from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tags.forms import Form, JsonSchema, Tag, TriggeredTags


class _Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    schema: bool | dict[str, Any] | str
    end: str


class _Structures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="structural_tag"):
    """The older form: triggered tags of schemas."""

    structures: list[_Structure]
    triggers: list[str]


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="structural_tag"):
    """The newer form."""

    format: Form


def read_tags(text: str) -> Form:
    """Return what a structural tag, as JSON text, says in either form.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is none, or has a key twice.
    """
    given = _decoded(text, "structural_tag")
    try:
        if isinstance(given, dict) and "format" in given:
            form = _decoded(given["format"], "structural_tag.format")
            return msgspec.convert(given | {"format": form}, _Format).format
        found = msgspec.convert(given, _Structures)
        schemas = [
            msgspec.convert(_decoded(one.schema, f"structural_tag.structures[{number}].schema"), bool | dict[str, Any])
            for number, one in enumerate(found.structures)
        ]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refused(f"structural_tag is none: {error or 'it is nested too deep'}") from None
    pairs = zip(found.structures, schemas, strict=True)
    return TriggeredTags(found.triggers, [Tag(one.begin, JsonSchema(schema), one.end) for one, schema in pairs])


def _decoded(given: Any, path: str) -> Any:
    """Return what may be given as JSON text."""
    try:
        return read_json(given) if isinstance(given, str) else given
    except BadJson as error:
        raise refused(f"{path} {error}") from None
