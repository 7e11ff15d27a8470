"""Whether an expression matches any text that holds no mark."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cache, lru_cache, partial

from llguidance import LLMatcher

from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.compiled import Compiled
from headrace_engine.guided.guide import GuideFailed
from headrace_engine.guided.library import call_library
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.tags.marks import Marks
from headrace_engine.guided.vocabulary import Vocabulary

_KEPT = 256
"""Expressions whose verdicts are kept: the tags of a text often share one."""


class _Bytes:
    """A vocabulary of the bytes alone, for which small grammars compile at once."""

    pieces: Sequence[bytes] = tuple(bytes([one]) for one in range(256))
    special_ids: AbstractSet[int] = frozenset()

    def encode_plain(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode())


def check_possible(pattern: str, marks: Marks, *, whole: bool) -> None:
    """Refuse an expression that only matches texts with a mark within: nothing could follow what comes before it.

    Args:
        whole: one of the marks follows at once, and so may be completed by it.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
        LibraryFailed: it cannot be compiled.
    """
    if not marks.heads:
        return
    if not _possible(pattern, marks.heads, whole and len(marks.heads) == len(marks.texts)):
        what = f'the mark "{marks.heads[0][:64]}", which ends the tag'
        raise refused(f'structural_tag: "{pattern[:64]}" matches no text without {what}')


@lru_cache(_KEPT)
def _possible(pattern: str, heads: tuple[str, ...], plain: bool) -> bool:
    """Return whether an expression matches a text that holds no mark; `plain`: nor has one but at its end."""
    rules = Rules({})
    marks, text = Marks(rules, heads), rules.expression(pattern)
    start = marks.after(text, strict=True) if plain else marks.none_in(text)
    return _matches_something(call_library(LLMatcher.grammar_from_lark, rules.text(start)))


def _matches_something(grammar: str) -> bool:
    """Return whether a grammar derives a text; also True where that takes too much to find out."""
    try:
        return _bytes().follow(Compiled(partial(_bytes().compile, grammar))).can_continue
    except GuideFailed:
        return True


@cache
def _bytes() -> Vocabulary:
    return Vocabulary(_Bytes(), 256)
