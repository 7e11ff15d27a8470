"""A model's ids as the parser knows them, and the grammars that were compiled for them."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from headrace_engine.guided.guide import Compiled, Guide, GuideFailed
from headrace_engine.guided.kept import KeptGrammars
from headrace_engine.guided.library import LibraryFailed, ask

LIMITS = LLParserLimits(
    max_items_in_row=700,
    step_max_items=10_000,
    initial_lexer_fuel=250_000,
    step_lexer_fuel=200_000,
    max_lexer_states=30_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""What a grammar may take: 0.3 s and 60 MB for its first ids, and 20 ms for the ids of one token.

The largest of some thousand schemas that people have published take 15 ms and 2 MB. Rows of more than 700 items are
those of ambiguous grammars, whose time grows with the cube of them; all items of a step take 0.1 s at most, and 1,500
of them are enough for such schemas and for grammars of languages. `TimeLimit` bounds what is left.
"""

MAX_BYTES = 256 << 20
"""Bytes of compiled grammars, those in use and those that are kept for the next request with the same."""


class Words(Protocol):
    """What has to be known of a tokenizer."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each id."""

    @property
    def special_ids(self) -> AbstractSet[int]:
        """Ids that stand for no text."""

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text."""


class Vocabulary:
    """The ids of one model. Safe to use from several threads.

    Args:
        words: the model's tokenizer.
        size: ids that the model has logits for; those without a piece are never allowed.
        max_bytes: of compiled grammars.
    """

    def __init__(self, words: Words, size: int, max_bytes: int = MAX_BYTES) -> None:
        self._size = size
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Pieces(words, size)), n_vocab=size)
        self.kept = KeptGrammars(max_bytes)

    def greedy(self, text: str) -> list[int]:
        """Return the ids of a text, the longest piece first."""
        return self._tokenizer.greedy_tokenize(text)

    def has_capacity(self, grammar: str, size: int) -> bool:
        """Whether a grammar of so many bytes may be compiled beside those in use."""
        return self.kept.has_capacity(grammar, size)

    def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int = 0, seconds: float = 0.0) -> Guide:
        """Return a guide at the beginning of a text, for a grammar that was checked.

        Args:
            eos_ids: ids that end the text once it is complete; all others of this kind are never allowed.
            size: bytes that the grammar was found to take.
            seconds: processor time that it was found to take.

        Raises:
            GuideFailed: it cannot be compiled after all.
        """
        return self.follow(self._compiled(grammar, size, seconds), eos_ids)

    def follow(self, compiled: Compiled, eos_ids: tuple[int, ...] = ()) -> Guide:
        """Return a guide for a grammar that is compiled.

        Raises:
            GuideFailed: there is no beginning.
        """
        return Guide(compiled, self._size, self._tokenizer.eos_token, eos_ids)

    def compile(self, grammar: str) -> LLMatcher:
        """Compile a grammar, whether or not it is kept.

        Raises:
            LibraryFailed: that cannot be done.
        """
        matcher = ask(LLMatcher, self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise LibraryFailed(matcher.get_error())
        return matcher

    def _compiled(self, grammar: str, size: int, seconds: float) -> Compiled:
        found = self.kept.find(grammar)
        if found is None:
            try:
                found = Compiled(partial(self.compile, grammar), size + len(grammar), seconds)
            except LibraryFailed as error:
                raise GuideFailed(str(error)) from error
            self.kept.add(grammar, found)
        return found


class _Pieces:
    """The ids of a model in the form that the parser reads.

    The id after the last one stands for the end of a text, so that it is none that a text may hold.
    """

    bos_token_id = None

    def __init__(self, words: Words, size: int) -> None:
        self.tokens = [*words.pieces[:size], *[b""] * (size - len(words.pieces)), b"<end>"]
        self.eos_token_id = size
        self.special_token_ids = [*(token_id for token_id in sorted(words.special_ids) if token_id < size), size]
        self._words = words

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text."""
        return self._words.encode_plain(text if isinstance(text, str) else text.decode(errors="replace"))
