"""Whether a format can be compiled, and what that takes: the same measure as in the core, on a few ids of a text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from headrace_engine.guided.grammar import advice, translate
from headrace_engine.guided.guide import Compiled, Guide, GuideFailed
from headrace_engine.guided.library import LibraryFailed, ask
from headrace_engine.guided.memory import allocated
from headrace_engine.guided.refusal import in_our_words, refused
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.request_parts import ResponseFormat

MAX_BYTES = 64 << 20
"""Bytes that one compiled grammar may take."""

_STEPS = 8
"""Ids of a text that are tried."""

_BITS = 32


@dataclass(frozen=True, slots=True)
class Checked:
    """A format that can be compiled.

    Attributes:
        grammar: in the library's language.
        warnings: what is suspicious about it.
        size: bytes that it takes once it is compiled.
        seconds: processor time that it takes to compile.
    """

    grammar: str = ""
    warnings: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0.0


def check(vocabulary: Vocabulary, wanted: ResponseFormat) -> Checked:
    """Compile a format, and begin a text.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: that cannot be done, or takes too much.
    """
    translated = translate(wanted)
    before, began = allocated(), time.process_time()
    try:
        compiled = Compiled(partial(vocabulary.compile, translated.grammar))
        warnings = [in_our_words(text) for text in ask(compiled.begin().get_grammar_warnings)]
        _begin_text(vocabulary, compiled)
    except (LibraryFailed, GuideFailed) as error:
        raise refused(f"cannot be compiled: {in_our_words(str(error))}{advice(wanted)}") from None
    size = max(0, allocated() - before)
    if size > MAX_BYTES:
        raise refused(f"takes {size >> 20} MiB once it is compiled; allowed: at most {MAX_BYTES >> 20} MiB")
    seconds = time.process_time() - began
    return Checked(translated.grammar, (*translated.warnings, *warnings), size, seconds)


def _begin_text(vocabulary: Vocabulary, compiled: Compiled) -> None:
    guide = vocabulary.follow(compiled)
    if not guide.may_begin:
        raise refused("cannot be compiled: no text begins it, or its rules lead back to themselves")
    for step in range(_STEPS):
        token_id = _some_id(guide, step)
        if token_id is None:
            return
        guide.take([token_id])


def _some_id(guide: Guide, step: int) -> int | None:
    """One that may come next, now of the first and now of the last; None: nothing may."""
    words = guide.allowed if step % 2 else guide.allowed[::-1]
    for place, word in enumerate(words):
        if word:
            index = place if step % 2 else len(words) - 1 - place
            return index * _BITS + word.bit_length() - 1
    return None
