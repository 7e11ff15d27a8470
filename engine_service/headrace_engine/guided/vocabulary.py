"""A model's ids as the parser knows them, and the grammars that were compiled for them."""

from __future__ import annotations

from functools import lru_cache, partial

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from headrace_engine.guided.grammar import refused
from headrace_engine.guided.guide import Guide, GuideFailed, first_line
from headrace_engine.models.tokenizer import TokenizerBundle

LIMITS = LLParserLimits(max_grammar_size=100_000, verbose_errors=False)
"""What a grammar may take: about half a second to compile, and 20 ms for the ids of one token."""

MAX_KEPT = 64
"""Compiled grammars that are kept for the next request with the same."""


class Vocabulary:
    """The ids of one model. Safe to use from several threads.

    Args:
        bundle: the model's tokenizer.
        size: ids that the model has logits for; those without a piece are never allowed.
        short: know only special ids and those of single bytes. That is enough for `check`, and made in a moment, where
            all ids take the lock of the interpreter for 0.15 s for every 50,000.
    """

    def __init__(self, bundle: TokenizerBundle, size: int, *, short: bool = False) -> None:
        self._size = size
        pieces = _Pieces(bundle, size, short=short)
        self._tokenizer = LLTokenizer(TokenizerWrapper(pieces), n_vocab=size, slices=[] if short else None)
        self._matcher = lru_cache(MAX_KEPT)(partial(_compile, self._tokenizer))

    def check(self, grammar: str, advice: str = "") -> list[str]:
        """What is suspicious about a grammar that can be compiled.

        Args:
            advice: what a refusal is to say besides.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: it cannot.
        """
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise refused(f"cannot be compiled: {first_line(matcher.get_error())}{advice}")
        try:
            Guide(matcher.deep_copy(), self._size, self._tokenizer.eos_token, ())
        except GuideFailed:
            raise refused("cannot be compiled: no text begins it, or its rules lead back to themselves") from None
        return [first_line(warning) for warning in matcher.get_grammar_warnings()]

    def guide(self, grammar: str, eos_ids: tuple[int, ...]) -> Guide:
        """A guide at the beginning of a text, for a grammar that `check` has accepted.

        Raises:
            GuideFailed: it cannot be compiled after all.

        Args:
            eos_ids: ids that end the text once it is complete; all others of this kind are never allowed.
        """
        return Guide(self._matcher(grammar).deep_copy(), self._size, self._tokenizer.eos_token, eos_ids)


def _compile(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A compiled grammar, at its beginning. Two threads may compile the same one."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


class _Pieces:
    """The ids of a model in the form that the parser reads.

    The id after the last one stands for the end of a text, so that it is none that a text may hold.
    """

    bos_token_id = None

    def __init__(self, bundle: TokenizerBundle, size: int, *, short: bool) -> None:
        known = bundle.pieces if not short else _short(bundle)
        self.tokens = [*known[:size], *[b""] * (size - len(known)), b"<end>"]
        self.eos_token_id = size
        self.special_token_ids = [*(token_id for token_id in sorted(bundle.special_ids) if token_id < size), size]
        self._bundle = bundle

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text."""
        return self._bundle.encode_plain(text if isinstance(text, str) else text.decode(errors="replace"))


def _short(bundle: TokenizerBundle) -> list[bytes]:
    """The pieces of special ids and single bytes, and none in the places of all others."""
    special = bundle.special_ids
    return [piece if len(piece) < 2 or number in special else b"" for number, piece in enumerate(bundle.pieces)]
