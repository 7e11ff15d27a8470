"""The notation of a grammar, where a request does not say it: other servers take Lark and EBNF in one field."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"(?:#|//).*")


def is_ebnf(grammar: str) -> bool:
    """Return whether a grammar is in EBNF (`root ::= …`) rather than Lark, as vLLM tells them apart.

    A rule in a comment says nothing.
    """
    return any("::=" in _COMMENT.sub("", line) for line in grammar.splitlines())
