"""Structural tags as requests have them: parts of a text that a format holds, among text that is free.

They are xgrammar's, which vLLM and SGLang take as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace_engine.guided.refusal import refused


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A part of a text."""


class AnyText(_Form, frozen=True, tag="any_text"):
    """Any text."""


class ConstString(_Form, frozen=True, tag="const_string"):
    """This text."""

    value: str


class JsonSchema(_Form, frozen=True, tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: bool | dict[str, Any]


class Regex(_Form, frozen=True, tag="regex"):
    """Text that an expression matches."""

    pattern: str


class Sequence(_Form, frozen=True, tag="sequence"):
    """One part after the other."""

    elements: list[Form]


class Or(_Form, frozen=True, tag="or"):
    """One of some parts."""

    elements: list[Form]


class Tag(_Form, frozen=True, tag="tag"):
    """A part between two marks.

    Attributes:
        end: the mark after it, or several of which one comes.
    """

    begin: str
    content: Form
    end: str | list[str]

    @property
    def ends(self) -> tuple[str, ...]:
        """The marks after it."""
        return (self.end,) if isinstance(self.end, str) else tuple(self.end)


class TriggeredTags(_Form, frozen=True, tag="triggered_tags"):
    """Free text, in which a trigger begins a tag.

    Attributes:
        triggers: beginnings of tags.
        at_least_one: it begins with a tag.
        stop_after_first: it ends after the first tag.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class SeparatedTags(_Form, frozen=True, tag="tags_with_separator"):
    """Tags, and between two of them a separator.

    Attributes:
        at_least_one: there is one.
        stop_after_first: there is no second one.
    """

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Form = AnyText | ConstString | JsonSchema | Regex | Sequence | Or | Tag | TriggeredTags | SeparatedTags


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
        InvalidArgument: BAD_RESPONSE_FORMAT: it is none.
    """
    try:
        given = msgspec.json.decode(text)
        if isinstance(given, dict) and "format" in given:
            return msgspec.convert(given | {"format": _decoded(given["format"])}, _Format).format
        found = msgspec.convert(given, _Structures)
        schemas = [msgspec.convert(_decoded(one.schema), bool | dict[str, Any]) for one in found.structures]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refused(f"structural_tag is none: {error or 'it is nested too deep'}") from None
    pairs = zip(found.structures, schemas, strict=True)
    return TriggeredTags(found.triggers, [Tag(one.begin, JsonSchema(schema), one.end) for one, schema in pairs])


def _decoded(given: Any) -> Any:
    """Return what may be given as JSON text."""
    return msgspec.json.decode(given) if isinstance(given, str) else given
