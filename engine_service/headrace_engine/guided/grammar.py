"""Response formats as grammars in the language of llguidance."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import ResponseFormat, ResponseFormatKind
from headrace_engine.guided.guide import first_line

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

FIELD = "config.response_format"

MAX_BYTES = 64 << 10
"""Bytes of a schema, an expression or a grammar, and of all choices together."""

_WHITESPACE = r"([\x20\t]|\r?\n[\x20\t]{0,16})?"
"""Between two tokens of JSON: a space, or a line break with indentation. More, and models go on with it for ever."""

_KEYWORDS = frozenset({
    "$schema", "$id", "$ref", "$defs", "$anchor", "$dynamicRef", "$dynamicAnchor", "$vocabulary", "$comment",
    "definitions", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "type",
    "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "properties", "patternProperties",
    "additionalProperties", "unevaluatedProperties", "propertyNames", "required", "minProperties", "maxProperties",
    "dependentRequired", "dependentSchemas", "dependencies", "items", "prefixItems", "additionalItems",
    "unevaluatedItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "format",
    "contentEncoding", "contentMediaType", "contentSchema", "x-guidance",
})  # fmt: skip
"""What a schema may begin with. Without any of them it is most often one in a wrapper, and would allow anything."""

_LARK_START = re.compile(r"^\??start\s*:(?!:)", re.MULTILINE)

_JSON: JsonCompileOptions = {
    "whitespace_pattern": _WHITESPACE,
    "json_allow_general_unicode_escapes": True,
    "lenient": False,
    "coerce_one_of": False,
}


def grammar_of(wanted: ResponseFormat) -> str:
    """The grammar of a format. Whether it can be compiled, `Vocabulary.check` finds out.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is too long, or not of its notation.
    """
    texts = wanted.choices or (wanted.text,)
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_BYTES:
        raise refused(f"has {size} bytes; allowed: at most {MAX_BYTES}")
    match wanted.kind:
        case ResponseFormatKind.JSON_OBJECT:
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON)
        case ResponseFormatKind.JSON_SCHEMA:
            return _from_schema(wanted.text)
        case ResponseFormatKind.REGEX:
            return LLMatcher.grammar_from_regex(wanted.text)
        case ResponseFormatKind.CHOICE:
            return _from_choices(wanted.choices)
        case ResponseFormatKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(_lark_of(wanted) if wanted.ebnf else wanted.text)


def advice(wanted: ResponseFormat) -> str:
    """What to say to whom a format is refused that looks like one of the other notation; "" where it does not."""
    if wanted.kind is not ResponseFormatKind.GRAMMAR:
        return ""
    if not wanted.ebnf and "::=" in wanted.text:
        return '; it looks like EBNF, which needs "syntax": "EBNF" (on the wire GRAMMAR_SYNTAX_EBNF)'
    if wanted.ebnf and _LARK_START.search(wanted.text):
        return '; it looks like Lark, which is taken without "syntax": "EBNF"'
    return ""


def refused(why: str) -> InvalidArgument:
    """The refusal of a format."""
    return InvalidArgument.field(FIELD, why, reason="BAD_RESPONSE_FORMAT")


def _from_schema(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused(f"json_schema is not JSON: {error}") from None
    if schema is False:
        raise refused("json_schema = false allows nothing; allowed: true, or an object")
    if schema is True:
        text = "{}"  # The same, which the library reads.
    elif not isinstance(schema, dict):
        raise refused("json_schema must be an object or a boolean, as JSON Schema says")
    elif schema and not schema.keys() & _KEYWORDS:
        has = ", ".join(sorted(schema))
        raise refused(
            f"json_schema has no keyword of JSON Schema, only {has}: give the schema itself, without a wrapper"
        )
    return LLMatcher.grammar_from_json_schema(text, overrides=_JSON)


def _from_choices(choices: tuple[str, ...]) -> str:
    if not choices:
        raise refused("choice has no strings; allowed: at least one")
    if "" in choices:
        raise refused("choice has an empty string; allowed: strings that are not empty")
    if len(set(choices)) < len(choices):
        raise refused("choice has a string twice; allowed: distinct strings")
    return LLMatcher.grammar_from_regex("|".join(map(_literal, choices)))


def _literal(text: str) -> str:
    """An expression that matches this text alone."""
    return "".join(one if one.isascii() and one.isalnum() else rf"\x{{{ord(one):X}}}" for one in text)


def _lark_of(wanted: ResponseFormat) -> str:
    try:
        return gbnf_to_lark(wanted.text)
    except Exception as error:  # The library raises plain ones too.
        raise refused(f"grammar is not EBNF: {first_line(str(error))}{advice(wanted)}") from None
