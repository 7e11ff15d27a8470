"""Memory of a request's payload: of its config and prompt, and of the structures built from them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

from headrace_engine.engine.config.stop_fields import stop_size
from headrace_engine.generation_config import GenerationConfig

ID_BYTES = 40
"""Bytes of an id in a tuple: its pointer, and the number."""

_SYMBOL_BYTES = 48
"""Bytes of a character or id of a stop in the stop finders: 20 in each of two, and a margin."""

_STOP_BYTES = 160
"""Bytes of a stop without its symbols."""

_BEFORE_BYTES = 128
"""Bytes of an id that a stop of several ids may still reach back to."""

_NUMBER_BYTES = 32

_OBJECT_BYTES = 64
"""Bytes of an object without its fields."""

_ENTRY_BYTES = 130
"""Bytes of an entry of a mapping of numbers."""

PLAIN_BYTES = 1024
"""Bytes of the smallest payload: a short prompt and a config of numbers. SEQUENCE_BYTES of its logs covers it."""


@dataclass(frozen=True, slots=True)
class PayloadSize:
    """Size of a request's payload, in bytes.

    Attributes:
        config: size of the config, which is retained until the request is released.
        made: size of the prompt, the stop finders, the rules and the grammar, which are freed with its last token.
        largest: path of the field with the largest part of both.
    """

    config: int = 0
    made: int = 0
    largest: str = "config"

    @property
    def bytes(self) -> int:
        """Bytes while the request runs, beyond PLAIN_BYTES."""
        return max(0, self.config + self.made - PLAIN_BYTES)

    @property
    def ended_bytes(self) -> int:
        """Bytes after its end."""
        return max(0, self.config - PLAIN_BYTES)


def payload_size(config: GenerationConfig, prompt_length: int, max_new: int, sequences: int) -> PayloadSize:
    """Return the payload size of a request with this effective config.

    Args:
        prompt_length: number of ids of its prompt.
        max_new: maximum number of ids that each sequence generates.
        sequences: number of sequences that are computed.
    """
    sizes = {f"config.{each.name}": held_bytes(getattr(config, each.name)) for each in fields(config)}
    stops = len(config.stop_words) + len(config.stop_words_ids) + len(config.stop_token_ids)
    reach = min(max(map(len, config.stop_words_ids), default=0), max_new)
    text = max(map(len, config.stop_words), default=0)  # May be held back by each sequence.
    finders = stops * _STOP_BYTES + stop_size(config) * _SYMBOL_BYTES
    finders += sequences * (reach * _BEFORE_BYTES + 4 * min(text, 64 * max_new))
    rules = sum(sizes[f"config.{name}"] for name in ("bad_words", "bad_words_ids", "logit_bias", "allowed_token_ids"))
    grammar = sizes["config.response_format"]
    prompt = prompt_length * ID_BYTES
    parts = {**sizes, "prompt": prompt, _stop_field(config): finders}
    made = prompt + finders + 4 * rules + grammar
    return PayloadSize(_OBJECT_BYTES + sum(sizes.values()), made, max(parts, key=lambda part: parts[part]))


def held_bytes(value: Any) -> int:
    """Return the bytes of a value of a config, including nested values."""
    if isinstance(value, int | float) or not value:
        return 0
    if isinstance(value, str | bytes):
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + _ENTRY_BYTES * len(value)
    if isinstance(value, Sequence):
        return sys.getsizeof(value) + _entry_bytes(value)
    return _OBJECT_BYTES + sum(held_bytes(getattr(value, each.name)) for each in fields(value))


def _entry_bytes(value: Sequence[Any]) -> int:
    """Return the bytes of a sequence's entries. Texts and numbers are measured together, since there may be many."""
    kinds = set(map(type, value))
    if kinds <= {int, float, bool}:
        return _NUMBER_BYTES * len(value)
    if kinds <= {str, bytes}:
        return sum(map(sys.getsizeof, value))
    if kinds == {tuple} and set(map(type, chain.from_iterable(value))) <= {int}:
        return sum(map(sys.getsizeof, value)) + _NUMBER_BYTES * sum(map(len, value))
    return sum(map(held_bytes, value))


def _stop_field(config: GenerationConfig) -> str:
    by_ids = sum(map(len, config.stop_words_ids)) >= sum(map(len, config.stop_words))
    return "config.stop_words_ids" if by_ids else "config.stop_words"
