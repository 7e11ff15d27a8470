"""Response formats as grammars in the language of llguidance."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from headrace_engine.guided.library import LibraryFailed, ask
from headrace_engine.guided.refusal import first_line, in_our_words, refused
from headrace_engine.guided.schema import read_schema
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_BYTES = 64 << 10
"""Bytes of a schema, an expression or a grammar, and of all choices together."""

_WHITESPACE = r"([\x20\t]|\r?\n[\x20\t]{0,16})?"
"""Between two tokens of JSON: a space, or a line break with indentation. More, and models go on with it for ever."""

_LARK_START = re.compile(r"^\??start\s*:(?!:)", re.MULTILINE)

_JSON: JsonCompileOptions = {
    "whitespace_pattern": _WHITESPACE,
    "json_allow_general_unicode_escapes": True,
    "lenient": False,
    "coerce_one_of": False,
}


@dataclass(frozen=True, slots=True)
class Translated:
    """A grammar in the library's language, and what is suspicious about the format it was made from."""

    grammar: str
    warnings: tuple[str, ...] = ()


def grammar_of(wanted: ResponseFormat) -> str:
    """The grammar of a format, without what is to be said about it."""
    return translate(wanted).grammar


def translate(wanted: ResponseFormat) -> Translated:
    """The grammar of a format. Whether it can be compiled, `check` finds out.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is too long, or not of its notation.
    """
    _check_size(wanted)
    try:
        return _translated(wanted)
    except LibraryFailed as error:
        raise refused(f"cannot be compiled: {in_our_words(str(error))}") from None


def _translated(wanted: ResponseFormat) -> Translated:
    match wanted.kind:
        case ResponseFormatKind.JSON_OBJECT:
            return _from_schema('{"type": "object"}')
        case ResponseFormatKind.JSON_SCHEMA:
            return _from_schema(wanted.text)
        case ResponseFormatKind.REGEX:
            return Translated(ask(LLMatcher.grammar_from_regex, wanted.text))
        case ResponseFormatKind.CHOICE:
            return Translated(_from_choices(wanted.choices))
        case ResponseFormatKind.GRAMMAR:
            return Translated(ask(LLMatcher.grammar_from_lark, _lark_of(wanted) if wanted.ebnf else wanted.text))


def advice(wanted: ResponseFormat) -> str:
    """What to say to whom a format is refused that looks like one of the other notation; "" where it does not."""
    if wanted.kind is not ResponseFormatKind.GRAMMAR:
        return ""
    if not wanted.ebnf and "::=" in wanted.text:
        return '; it looks like EBNF, which needs "syntax": "EBNF" (on the wire GRAMMAR_SYNTAX_EBNF)'
    if wanted.ebnf and _LARK_START.search(wanted.text):
        return '; it looks like Lark, which is taken without "syntax": "EBNF"'
    return ""


def _check_size(wanted: ResponseFormat) -> None:
    texts = wanted.choices or (wanted.text,)
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise refused(f"holds half of a surrogate pair, which is no text: {error.object[error.start]!r}") from None
    if size > MAX_BYTES:
        raise refused(f"has {size} bytes; allowed: at most {MAX_BYTES}")


def _from_schema(text: str) -> Translated:
    schema, warnings = read_schema(text)
    return Translated(ask(LLMatcher.grammar_from_json_schema, schema, overrides=_JSON), tuple(warnings))


def _from_choices(choices: tuple[str, ...]) -> str:
    if not choices:
        raise refused("choice has no strings; allowed: at least one")
    if "" in choices:
        raise refused("choice has an empty string; allowed: strings that are not empty")
    if len(set(choices)) < len(choices):
        raise refused("choice has a string twice; allowed: distinct strings")
    return ask(LLMatcher.grammar_from_regex, "|".join(map(_literal, choices)))


def _literal(text: str) -> str:
    """An expression that matches this text alone."""
    return "".join(one if one.isascii() and one.isalnum() else rf"\x{{{ord(one):X}}}" for one in text)


def _lark_of(wanted: ResponseFormat) -> str:
    try:
        return gbnf_to_lark(wanted.text)
    except Exception as error:  # The library raises plain ones too.
        raise refused(f"grammar is not EBNF: {first_line(str(error))}{advice(wanted)}") from None
