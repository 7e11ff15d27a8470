"""How long a prompt may be before its ids are counted."""

from __future__ import annotations

from headrace_engine.errors import InvalidArgument


def check_size(text: str, max_bytes: int, max_length: int) -> None:
    """Refuse a text that no prompt can hold, before it is tokenised.

    Args:
        max_bytes: that max_length - 1 tokens can hold.

    Raises:
        InvalidArgument: it is longer, or no text: it holds half of a surrogate pair.
    """
    size, unit = len(text), "characters"
    try:
        if size <= max_bytes:  # A text that is far too long is not even encoded.
            size, unit = len(text.encode()), "bytes"
    except UnicodeEncodeError as error:
        place = f"half of a surrogate pair at character {error.start}"
        raise InvalidArgument.field("prompt", f"holds {place}, which is no text") from error
    if size > max_bytes:
        raise InvalidArgument.field(
            "prompt",
            f"has {size} {unit}, more than {max_length - 1} tokens can hold (at most {max_bytes} bytes)",
            reason="PROMPT_TOO_LONG",
        )
