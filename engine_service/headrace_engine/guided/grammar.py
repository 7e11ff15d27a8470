"""Translates response formats into grammars of llguidance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_proto.pure.limits import MAX_PARTS_BYTES
from llguidance import LLMatcher

from headrace_engine.guided.calls.answer import grammar_of_calls
from headrace_engine.guided.calls.lark import JSON_OPTIONS, literally
from headrace_engine.guided.calls.wanted import WantedCalls
from headrace_engine.guided.ebnf import lark_of_ebnf
from headrace_engine.guided.library import LibraryFailed, call_library
from headrace_engine.guided.refusal import explain, refused
from headrace_engine.guided.schema import read_schema
from headrace_engine.guided.tags.grammar import grammar_of_tags
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind

MAX_BYTES = 64 << 10
"""Maximum size of a schema, an expression, a grammar, or all choices together, in bytes."""

_LARK_START = re.compile(r"^\??start\s*:(?!:)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Translated:
    """A grammar in the library's language, and warnings about the format that it was translated from."""

    grammar: str
    warnings: tuple[str, ...] = ()


def grammar_of(requested: ResponseFormat) -> str:
    """Return the grammar of a format, without warnings."""
    return translate(requested).grammar


def translate(requested: ResponseFormat, specials: Mapping[str, int] | None = None) -> Translated:
    """Translate a format. It may still fail to compile: see `check`.

    Args:
        specials: ids of special tokens by their text, for marks.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is too long, or not written in its notation.
    """
    _check_size(requested)
    try:
        return _translated(requested, specials or {})
    except LibraryFailed as error:
        raise refused(f"cannot be compiled: {explain(str(error))}") from None


def _translated(requested: ResponseFormat, specials: Mapping[str, int]) -> Translated:
    match requested.kind:
        case ResponseFormatKind.JSON_OBJECT | ResponseFormatKind.JSON_SCHEMA:
            return _from_schema(requested.schema or "")
        case ResponseFormatKind.REGEX:
            return Translated(call_library(LLMatcher.grammar_from_regex, requested.text))
        case ResponseFormatKind.CHOICE:
            return Translated(_from_choices(requested.choices))
        case ResponseFormatKind.GRAMMAR:
            text = lark_of_ebnf(requested.text, advice(requested)) if requested.ebnf else requested.text
            return Translated(call_library(LLMatcher.grammar_from_lark, text))
        case ResponseFormatKind.STRUCTURAL_TAG:
            return _from_rules(*grammar_of_tags(requested.text, specials))
        case ResponseFormatKind.CALLS:
            return _from_rules(*grammar_of_calls(WantedCalls.of(requested), specials))


def _from_rules(text: str, warnings: list[str]) -> Translated:
    return Translated(call_library(LLMatcher.grammar_from_lark, text), tuple(warnings))


def advice(requested: ResponseFormat) -> str:
    """Return advice for a refused grammar that seems to be written in the other notation; "" for all others."""
    if requested.kind is not ResponseFormatKind.GRAMMAR:
        return ""
    if not requested.ebnf and "::=" in requested.text:
        return '; it looks like EBNF, which needs "syntax": "EBNF" (on the wire GRAMMAR_SYNTAX_EBNF)'
    if requested.ebnf and _LARK_START.search(requested.text):
        return '; it looks like Lark, which is taken without "syntax": "EBNF"'
    return ""


def _check_size(requested: ResponseFormat) -> None:
    if requested.kind is ResponseFormatKind.CALLS:
        wanted = WantedCalls.of(requested)
        schema = wanted.schema or ""
        _check_bytes((schema,), MAX_BYTES)
        _check_bytes((schema, *wanted.tools), MAX_PARTS_BYTES)
    elif requested.kind is ResponseFormatKind.STRUCTURAL_TAG:
        _check_bytes((requested.text,), MAX_PARTS_BYTES)
    else:
        _check_bytes(requested.choices or (requested.text,), MAX_BYTES)


def _check_bytes(texts: Sequence[str], most: int) -> None:
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise refused(f"is not valid text: it contains the lone surrogate {error.object[error.start]!r}") from None
    if size > most:
        raise refused(f"has {size} bytes; allowed: at most {most}")


def _from_schema(text: str) -> Translated:
    schema, warnings = read_schema(text)
    return Translated(call_library(LLMatcher.grammar_from_json_schema, schema, overrides=JSON_OPTIONS), tuple(warnings))


def _from_choices(choices: tuple[str, ...]) -> str:
    if not choices:
        raise refused("choice has no strings; allowed: at least one")
    if "" in choices:
        raise refused("choice has an empty string; allowed: non-empty strings")
    if len(set(choices)) < len(choices):
        raise refused("choice has a string twice; allowed: distinct strings")
    return call_library(LLMatcher.grammar_from_regex, "|".join(map(literally, choices)))
