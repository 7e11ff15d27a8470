"""Checks that a format can be compiled, and measures its cost, by the core's own limits on the first ids of a text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from headrace_engine.guided.compiled import Compiled
from headrace_engine.guided.grammar import advice, translate
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.guided.library import LibraryFailed, call_library
from headrace_engine.guided.memory import allocated
from headrace_engine.guided.refusal import explain, refused
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.request_parts import ResponseFormat

MAX_BYTES = 64 << 20
"""Maximum size of one compiled grammar, in bytes."""

_STEPS = 8
"""Number of ids of a text that are tried."""

_BITS = 32


@dataclass(frozen=True, slots=True)
class Checked:
    """A format that can be compiled.

    Attributes:
        grammar: the grammar in the library's language.
        warnings: sentences about likely mistakes in it.
        size: bytes of the compiled grammar.
        seconds: processor time taken to compile it.
    """

    grammar: str = ""
    warnings: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0.0


def check(vocabulary: Vocabulary, requested: ResponseFormat) -> Checked:
    """Compile a format and generate the first ids of a text.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it cannot be compiled, or costs too much.
    """
    translated = translate(requested, vocabulary.specials)
    before, began = allocated(), time.process_time()
    try:
        compiled = Compiled(partial(vocabulary.compile, translated.grammar))
        warnings = [explain(text) for text in call_library(compiled.begin().get_grammar_warnings)]
        _begin_text(vocabulary, compiled)
    except (LibraryFailed, GuideFailed) as error:
        raise refused(f"cannot be compiled: {explain(str(error))}{advice(requested)}") from None
    size = max(0, allocated() - before)
    if size > MAX_BYTES:
        raise refused(f"takes {size >> 20} MiB when compiled; allowed: at most {MAX_BYTES >> 20} MiB")
    seconds = time.process_time() - began
    return Checked(translated.grammar, (*translated.warnings, *warnings), size, seconds)


def _begin_text(vocabulary: Vocabulary, compiled: Compiled) -> None:
    guide = vocabulary.follow(compiled)
    if not guide.can_continue:
        raise refused("cannot be compiled: it matches no text, or its rules are endlessly recursive")
    for step in range(_STEPS):
        token_id = _some_id(guide, step)
        if token_id is None:
            return
        guide.take([token_id])


def _some_id(guide: Guide, step: int) -> int | None:
    """Return an allowed id, alternately one of the lowest and of the highest; None if none is allowed."""
    words = guide.allowed if step % 2 else guide.allowed[::-1]
    for offset, word in enumerate(words):
        if word:
            index = offset if step % 2 else len(words) - 1 - offset
            return index * _BITS + word.bit_length() - 1
    return None
