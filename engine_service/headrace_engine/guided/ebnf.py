"""Grammars in EBNF, in the library's language."""

from __future__ import annotations

from llguidance.gbnf_to_lark import gbnf_to_lark

from headrace_engine.guided.refusal import first_line, refused


def lark_of_ebnf(grammar: str, advice: str = "") -> str:
    """Return a grammar in EBNF (`root ::= …`) in the library's language.

    Args:
        advice: what an error ends with.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is none.
    """
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # The library raises bare `Exception` too.
        raise refused(f"grammar is not EBNF: {first_line(str(error))}{advice}") from None
