"""Structural tags as requests have them: parts of a text that a format holds, among text that is free.

They are xgrammar's, which vLLM and SGLang take as they are.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace_engine.guided.refusal import refused


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A part of a text."""


class AnyText(_Form, frozen=True, tag="any_text"):
    """Any text.

    Attributes:
        excludes: texts that are not in it.
        max_tokens: is not supported, and neither is max_chars.
    """

    excludes: list[str] = []
    max_tokens: None = None
    max_chars: None = None


class ConstString(_Form, frozen=True, tag="const_string"):
    """This text."""

    value: str


class JsonSchema(_Form, frozen=True, tag="json_schema"):
    """JSON that satisfies a schema.

    Attributes:
        style: how values are written; the others of xgrammar are not supported.
        any_order: true is not supported.
        max_whitespace_cnt: is not supported.
    """

    json_schema: bool | dict[str, Any]
    style: Literal["json"] = "json"
    any_order: bool = False
    max_whitespace_cnt: None = None


class Regex(_Form, frozen=True, tag="regex"):
    """Text that an expression matches."""

    pattern: str


class EbnfGrammar(_Form, frozen=True, tag="grammar"):
    """Text that a grammar derives, in EBNF."""

    grammar: str


class Sequence(_Form, frozen=True, tag="sequence"):
    """One part after the other."""

    elements: list[Form]


class Or(_Form, frozen=True, tag="or"):
    """One of some parts."""

    elements: list[Form]


class Optional(_Form, frozen=True, tag="optional"):
    """A part, or nothing."""

    content: Form


class Plus(_Form, frozen=True, tag="plus"):
    """A part, once or more."""

    content: Form


class Star(_Form, frozen=True, tag="star"):
    """A part, any number of times."""

    content: Form


class Repeat(_Form, frozen=True, tag="repeat"):
    """A part, some number of times.

    Attributes:
        min: the smallest number.
        max: the largest; -1: there is none.
    """

    content: Form
    min: int
    max: int


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
        excludes: texts that are not in the free text.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class Dispatch(_Form, frozen=True, tag="dispatch"):
    """Free text, in which what follows a text has a form.

    Attributes:
        rules: texts, and what follows each.
        loop: there may be several; else it ends after the first.
        excludes: texts that are not in the free text.
    """

    rules: list[tuple[str, Form]]
    loop: bool = True
    excludes: list[str] = []

    def tags(self) -> TriggeredTags:
        """Return it as tags that end where their contents do."""
        tags = [Tag(text, form, "") for text, form in self.rules]
        triggers = list(dict.fromkeys(text for text, _ in self.rules))
        return TriggeredTags(triggers, tags, stop_after_first=not self.loop, excludes=self.excludes)


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


Repeated = Optional | Plus | Star | Repeat
Form = (
    AnyText
    | ConstString
    | JsonSchema
    | Regex
    | EbnfGrammar
    | Sequence
    | Or
    | Repeated
    | Tag
    | TriggeredTags
    | SeparatedTags
    | Dispatch
)


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
