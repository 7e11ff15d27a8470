"""Grammars in EBNF, in the library's language."""

from __future__ import annotations

import re
import sys

from llguidance.gbnf_to_lark import gbnf_to_lark

from headrace_engine.guided.refusal import first_line, refused

_PART = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*', re.DOTALL)
_CODE = re.compile(r"(\\[^uU])|\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))", re.DOTALL)
_RULE = re.compile(r"([\w-]+)[ \t]*::=")


def lark_of_ebnf(grammar: str, advice: str = "") -> str:
    """Return a grammar in EBNF (`root ::= …`) in the library's language.

    Args:
        advice: what an error ends with.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is none, or has a rule twice, of which the library would keep the last.
    """
    names: set[str] = set()
    for name in _RULE.findall(_PART.sub("", grammar)):
        if name in names:
            raise refused(f'grammar has the rule "{name}" twice{advice}')
        names.add(name)
    written = _PART.sub(_written_for_the_library, grammar)
    try:
        return gbnf_to_lark(written)
    except Exception as error:  # The library raises bare `Exception` too.
        raise refused(f"grammar is not EBNF: {first_line(str(error))}{advice}") from None


def _written_for_the_library(part: re.Match[str]) -> str:
    """Return a literal, a class of characters or a comment as the library reads it.

    It drops leading zeros of codes, and copies classes into regexes where `&&`, `--` and `~~` are operations on sets.
    """
    if part[0].startswith("#"):
        return part[0]
    text = _CODE.sub(_character, part[0])
    if not text.startswith("["):
        return text
    if "--" in text:
        raise refused(f"grammar has {text}, in which -- is ambiguous; write \\x2d for the character -")
    return text.replace("&", r"\x26").replace("~", r"\x7e")


def _character(code: re.Match[str]) -> str:
    if code[1]:
        return code[1]
    number = int(code[2] or code[3], 16)
    if number > sys.maxunicode or 0xD800 <= number < 0xE000:
        raise refused(f"grammar has {code[0]}, which is no character")
    return f"\\x{number:02x}" if number < 0x80 else chr(number)
