"""Limit on the size of a prompt, checked before it is tokenized."""

from __future__ import annotations

from headrace_engine.errors import InvalidArgument


def check_size(text: str, max_bytes: int, max_length: int) -> None:
    """Refuse a text that is too long for any prompt, before it is tokenized.

    Args:
        max_bytes: maximum bytes of text that max_length - 1 tokens can hold.

    Raises:
        InvalidArgument: it is too long, or contains half of a surrogate pair.
    """
    size, unit = len(text), "characters"
    try:
        if size <= max_bytes:  # A text that is far too long is not even encoded.
            size, unit = len(text.encode()), "bytes"
    except UnicodeEncodeError as error:
        where = f"half of a surrogate pair at character {error.start}"
        raise InvalidArgument.field("prompt", f"holds {where}, which is not valid text") from error
    if size > max_bytes:
        raise InvalidArgument.field(
            "prompt",
            f"has {size} {unit}, more than {max_length - 1} tokens can hold (at most {max_bytes} bytes)",
            reason="PROMPT_TOO_LONG",
        )
