"""`python -m headrace_engine.engine.formats.process FD`: checks response formats for the engine at the other end of FD.

A format is compiled as in the core, with the model's whole vocabulary: a format that crashes the parser or takes too
long does so here and never reaches the core.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from headrace_engine.engine.chat.frames import Refusal
from headrace_engine.engine.formats.frames import MAX_MEMORY, MAX_SECONDS, Order, Verdict, Words
from headrace_engine.engine.work.side_process import clock, read, serve, write
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.check import check
from headrace_engine.guided.memory import give_back
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.request_parts import ResponseFormat

_STACK = 4 << 20
"""Stack of the checking thread, in bytes: half of that of a thread of the core."""


def main(descriptor: int) -> None:
    """Serve requests until the engine closes the connection."""
    serve("formats", descriptor, MAX_MEMORY, _serve)


class _Tokenizer:
    """A model's vocabulary; texts are encoded greedily by the longest piece, at the same cost to the parser."""

    def __init__(self, words: Words) -> None:
        self.pieces, self.special_ids = words.pieces, words.special_ids
        self.greedy: Callable[[str], list[int]] = lambda _: []

    def encode_plain(self, text: str) -> list[int]:
        return self.greedy(text)


def _serve(stream: BinaryIO) -> None:
    words = read(stream, Words)
    tokenizer = _Tokenizer(words)
    vocabulary = Vocabulary(tokenizer, words.size)
    tokenizer.greedy = vocabulary.greedy
    write(stream, Verdict())
    while True:
        order = read(stream, Order)
        write(stream, _on_stack(partial(_verdict, vocabulary, order.wanted)))


def _verdict(vocabulary: Vocabulary, wanted: ResponseFormat) -> Verdict:
    with clock(MAX_SECONDS):
        try:
            checked = check(vocabulary, wanted)
        except InvalidArgument as error:
            return Verdict(refusal=Refusal.of(error))
        finally:
            give_back()
    return Verdict(checked.grammar, checked.warnings, checked.size, checked.seconds)


def _on_stack(work: Callable[[], Verdict]) -> Verdict:
    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    threading.stack_size(_STACK)
    thread.start()
    thread.join()
    return found[0]


if __name__ == "__main__":
    main(int(sys.argv[1]))
