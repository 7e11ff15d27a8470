"""Ids of special tokens in config files and metadata."""

from __future__ import annotations

from headrace_engine.models.config_fields import ConfigFields


def end_ids(source: ConfigFields, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of `eos_token_id`, which may be one id or a list.

    Raises:
        BadModel: one of them is not in the vocabulary.
    """
    value = source.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(_is_id(token_id, vocab_size) for token_id in ids):
        raise source.error("eos_token_id", f"must be an id or a list of ids below {vocab_size}")
    return tuple(dict.fromkeys(ids))


def one_id(source: ConfigFields, name: str, vocab_size: int) -> int | None:
    """Return one id; None if it is absent or outside the vocabulary."""
    value = source.get(name)
    return value if _is_id(value, vocab_size) else None


def _is_id(value: object, vocab_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
