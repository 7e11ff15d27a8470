"""The response formats of one model's requests: checked before a request is accepted, and off the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace_engine.generation_config import ResponseFormat
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_types import ConfigWarning

if TYPE_CHECKING:
    from headrace_engine.guided.vocabulary import Vocabulary


class Guiding:
    """Compiles what requests bring, one format after the other: many large ones hold up each other and nothing else.

    Only to find out whether that can be done: the core compiles again, with all ids.

    Args:
        bundle: the model's tokenizer.
        vocab_size: ids that the model has logits for.
    """

    def __init__(self, bundle: TokenizerBundle, vocab_size: int) -> None:
        self._bundle, self._vocab_size = bundle, vocab_size
        self._vocabulary: Vocabulary | None = None
        self._turn = asyncio.Lock()

    async def check(self, wanted: ResponseFormat | None) -> tuple[str, tuple[ConfigWarning, ...]]:
        """The grammar of a format, "" without one, and what is suspicious about it.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT.
        """
        if wanted is None:
            return "", ()
        async with self._turn:
            return await asyncio.to_thread(self._compile, wanted)

    def _compile(self, wanted: ResponseFormat) -> tuple[str, tuple[ConfigWarning, ...]]:
        from headrace_engine.guided.grammar import FIELD, advice, grammar_of  # Most engines never need the library.
        from headrace_engine.guided.vocabulary import Vocabulary

        grammar = grammar_of(wanted)
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self._bundle, self._vocab_size, short=True)
        return grammar, tuple(ConfigWarning(FIELD, text) for text in self._vocabulary.check(grammar, advice(wanted)))
