"""A model's ids as the parser knows them, and the grammars that were compiled for them."""

from __future__ import annotations

from functools import lru_cache, partial

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from headrace_engine.guided.grammar import refused
from headrace_engine.guided.guide import Guide, first_line
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
    """

    def __init__(self, bundle: TokenizerBundle, size: int) -> None:
        self._size = size
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Pieces(bundle, size)), n_vocab=size)
        self._matcher = lru_cache(MAX_KEPT)(partial(_compile, self._tokenizer))

    def check(self, grammar: str) -> list[str]:
        """What is suspicious about a grammar that can be compiled.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: it cannot.
        """
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise refused(f"cannot be compiled: {first_line(matcher.get_error())}")
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

    def __init__(self, bundle: TokenizerBundle, size: int) -> None:
        self.tokens = [*bundle.pieces, *[b""] * (size - len(bundle.pieces)), b"<end>"]
        self.eos_token_id = size
        self.special_token_ids = [*sorted(bundle.special_ids), size]
        self._bundle = bundle

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text."""
        return self._bundle.encode_plain(text if isinstance(text, str) else text.decode(errors="replace"))
