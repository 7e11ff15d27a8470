"""The response formats of one model's requests: checked before a request is accepted, and off the loop."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from headrace_engine.engine.work_pools import WorkPools
from headrace_engine.generation_config import ResponseFormat
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_types import ConfigWarning

if TYPE_CHECKING:
    from headrace_engine.guided.vocabulary import Vocabulary


class Guiding:
    """Compiles what requests bring, in threads of its own: many large formats hold up each other and nothing else.

    Only to find out whether that can be done: the core compiles again, with all ids.

    Args:
        bundle: the model's tokenizer.
        vocab_size: ids that the model has logits for.
        pools: where formats are checked; None: pools of its own.
    """

    def __init__(self, bundle: TokenizerBundle, vocab_size: int, pools: WorkPools | None = None) -> None:
        self._bundle, self._vocab_size = bundle, vocab_size
        self._vocabulary: Vocabulary | None = None
        self._making = Lock()
        self._pools = pools or WorkPools()

    async def check(self, wanted: ResponseFormat | None, owner: str = "") -> tuple[str, tuple[ConfigWarning, ...]]:
        """The grammar of a format, "" without one, and what is suspicious about it.

        Args:
            owner: for whom: owners have turns where many formats are checked.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT.
            ResourceExhausted: QUEUE_FULL, too many formats wait.
        """
        if wanted is None:
            return "", ()
        return await self._pools.formats.run(owner, self._compile, wanted)

    def _compile(self, wanted: ResponseFormat) -> tuple[str, tuple[ConfigWarning, ...]]:
        from headrace_engine.guided.grammar import FIELD, advice, grammar_of  # Most engines never need the library.

        grammar = grammar_of(wanted)
        warnings = self._known().check(grammar, advice(wanted))
        return grammar, tuple(ConfigWarning(FIELD, text) for text in warnings)

    def _known(self) -> Vocabulary:
        from headrace_engine.guided.vocabulary import Vocabulary

        with self._making:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._bundle, self._vocab_size, short=True)
            return self._vocabulary
