"""A model's ids as the parser sees them, and the grammars compiled for them."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from headrace_engine.characters.stop_words import WordReader, stop_words_of
from headrace_engine.guided.compiled import Compiled
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.guided.kept import KeptGrammars
from headrace_engine.guided.library import LibraryFailed, call_library

LIMITS = LLParserLimits(
    max_items_in_row=700,
    step_max_items=10_000,
    initial_lexer_fuel=250_000,
    step_lexer_fuel=200_000,
    max_lexer_states=30_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Limits of a grammar: they amount to 0.3 s and 60 MB for its first ids, and 20 ms for each further one.

The largest of some thousand published schemas take 15 ms and 2 MB. Rows of more than 700 items come from ambiguous
grammars, whose time grows with the cube of the length; all items of a step take 0.1 s at most, and 1,500 of them are
enough for such schemas and for grammars of languages. `TimeLimit` bounds the rest.
"""

MAX_BYTES = 256 << 20
"""Limit for all compiled grammars together, in bytes."""


class TokenBytes(Protocol):
    """The parts of a tokenizer that the parser needs."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each id."""

    @property
    def special_ids(self) -> AbstractSet[int]:
        """Ids that stand for no text."""

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text."""


class Vocabulary:
    """The ids of one model. Thread-safe.

    Args:
        source: the model's tokenizer.
        size: number of ids that the model has logits for; those without a piece are never allowed.
        max_bytes: limit for all compiled grammars.

    Attributes:
        specials: the special ids by their text.
    """

    def __init__(self, source: TokenBytes, size: int, max_bytes: int = MAX_BYTES) -> None:
        self._size = size
        self._source = source
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Pieces(source, size)), n_vocab=size)
        self.kept = KeptGrammars(max_bytes)
        self.specials = {
            source.pieces[token_id].decode(errors="replace"): token_id
            for token_id in source.special_ids
            if token_id < min(size, len(source.pieces))
        }

    def greedy(self, text: str) -> list[int]:
        """Tokenize a text greedily, by the longest matching piece."""
        return self._tokenizer.greedy_tokenize(text)

    def has_capacity(self, grammar: str, size: int) -> bool:
        """Return True if a grammar of this size, in bytes, may be compiled in addition to those in use."""
        return self.kept.has_capacity(grammar, size)

    def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int = 0, seconds: float = 0.0) -> Guide:
        """Return a guide at the start of a text, for a grammar that was checked.

        Args:
            eos_ids: ids that end the text once it is complete; other special ids are never allowed.
            size: bytes that the grammar took when it was checked.
            seconds: processor time that it took then.

        Raises:
            GuideFailed: it cannot be compiled after all.
        """
        return self.follow(self._compiled(grammar, size, seconds), eos_ids)

    def word_reader(
        self, words: Sequence[str], prompt: Sequence[int], kept: AbstractSet[int], *, skips_special: bool
    ) -> WordReader:
        """Return a reader of texts that continue a prompt, which finds words.

        Args:
            kept: special ids that have a text.
            skips_special: the other special ids have none.
        """
        pieces, special = self._source.pieces, self.specials if skips_special else {}
        skipped = self._source.special_ids - kept if skips_special else frozenset[int]()

        def token_bytes(token_id: int) -> bytes:
            return pieces[token_id] if token_id < len(pieces) else b""

        return WordReader(stop_words_of(words, special), token_bytes, skipped, prompt)

    def follow(self, compiled: Compiled, eos_ids: tuple[int, ...] = ()) -> Guide:
        """Return a guide for a compiled grammar.

        Raises:
            GuideFailed: no text can start.
        """
        return Guide(compiled, self._size, self._tokenizer.eos_token, eos_ids)

    def compile(self, grammar: str) -> LLMatcher:
        """Compile a grammar, bypassing the cache.

        Raises:
            LibraryFailed: it cannot be compiled.
        """
        matcher = call_library(LLMatcher, self._tokenizer, grammar, log_level=0, limits=LIMITS)
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

    The id after the last one stands for the end of a text, so that no id of a text can be mistaken for it.
    """

    bos_token_id = None

    def __init__(self, source: TokenBytes, size: int) -> None:
        self.tokens = [*source.pieces[:size], *[b""] * (size - len(source.pieces)), b"<end>"]
        self.eos_token_id = size
        self.special_token_ids = [*(token_id for token_id in sorted(source.special_ids) if token_id < size), size]
        self._source = source

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the ids of a text."""
        return self._source.encode_plain(text if isinstance(text, str) else text.decode(errors="replace"))
