"""Lark and EBNF are told apart as vLLM does: by the rules outside of comments."""

from __future__ import annotations

import pytest
from headrace_proto.pure.grammar_notation import is_ebnf


@pytest.mark.parametrize(
    ("grammar", "ebnf"),
    [
        ('root ::= "a"', True),
        ('# words: a\nroot ::= "a" # start: b', True),
        ('start: "a"', False),
        ('// root ::= "a"\nstart: "a"', False),
        ('start: "a" # root ::= "a"', False),
        ("", False),
    ],
)
def test_rules_say_the_notation(grammar: str, ebnf: bool) -> None:
    assert is_ebnf(grammar) is ebnf
