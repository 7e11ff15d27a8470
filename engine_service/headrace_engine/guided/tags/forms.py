"""The parts of structural tags, as requests have them. They are xgrammar's, which vLLM and SGLang take as they are."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


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


class AnyTokens(_Form, frozen=True, tag="any_tokens"):
    """Any text, as AnyText.

    Attributes:
        exclude_tokens: special tokens that are not in it.
        max_tokens: is not supported.
    """

    exclude_tokens: list[str | int] = []
    max_tokens: None = None


class ConstString(_Form, frozen=True, tag="const_string"):
    """This text."""

    value: str


class JsonSchema(_Form, frozen=True, tag="json_schema"):
    """JSON that satisfies a schema.

    Attributes:
        style: how it is written: as JSON, or an object as parameters that stand one by one, as some models write calls.
        any_order: true is not supported.
        max_whitespace_cnt: is not supported.
    """

    json_schema: bool | dict[str, Any]
    style: Literal["json", "qwen_xml", "minimax_xml", "deepseek_xml", "glm_xml"] = "json"
    any_order: bool = False
    max_whitespace_cnt: None = None


class QwenParameters(_Form, frozen=True, tag="qwen_xml_parameter"):
    """An older name of a JsonSchema in the style qwen_xml."""

    json_schema: bool | dict[str, Any]


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


class Token(_Form, frozen=True, tag="token"):
    """A special token, by its text or its id."""

    token: str | int


class Tag(_Form, frozen=True, tag="tag"):
    """A part between two marks.

    Attributes:
        end: the mark after it, or several of which one comes.
    """

    begin: str | Token
    content: Form
    end: str | list[str] | Token


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


class TokenTriggeredTags(_Form, frozen=True, tag="token_triggered_tags"):
    """TriggeredTags whose triggers, and excluded texts, are special tokens."""

    trigger_tokens: list[str | int]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    exclude_tokens: list[str | int] = []


class TokenDispatch(_Form, frozen=True, tag="token_dispatch"):
    """A Dispatch whose texts, and excluded ones, are special tokens."""

    rules: list[tuple[str | int, Form]]
    loop: bool = True
    exclude_tokens: list[str | int] = []


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
    | AnyTokens
    | ConstString
    | Token
    | JsonSchema
    | QwenParameters
    | Regex
    | EbnfGrammar
    | Sequence
    | Or
    | Repeated
    | Tag
    | TriggeredTags
    | TokenTriggeredTags
    | SeparatedTags
    | Dispatch
    | TokenDispatch
)
