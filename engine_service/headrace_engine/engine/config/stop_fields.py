"""The stops of a request: checks, and the cost of preparing them."""

from __future__ import annotations

from collections.abc import Collection

from headrace_engine.engine.config.field_checks import check_ids, check_symbols
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig


def check_stop_fields(sent: GenerationConfig, vocab_size: int, holes: Collection[int] = ()) -> None:
    """Refuse empty stops, ids that the model does not have, and more than MAX_SYMBOLS.

    Raises:
        InvalidArgument: naming the field.
    """
    for number, word in enumerate(sent.stop_words):
        if not word:
            raise InvalidArgument.field(f"config.stop_words[{number}]", "is empty: every text contains it")
    for number, ids in enumerate(sent.stop_words_ids):
        field = f"config.stop_words_ids[{number}]"
        if not ids:
            raise InvalidArgument.field(field, "is empty: name at least one id")
        check_ids(field, ids, vocab_size, holes)
    check_ids("config.stop_token_ids", sent.stop_token_ids, vocab_size, holes)
    check_symbols(sent, "stop_words", "stop_words_ids")


def stop_size(config: GenerationConfig) -> int:
    """Return the number of characters and ids of all stops: the cost of preparing them."""
    return sum(map(len, config.stop_words)) + sum(map(len, config.stop_words_ids)) + len(config.stop_token_ids)
