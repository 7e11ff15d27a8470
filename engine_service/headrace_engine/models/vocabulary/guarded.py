"""Calls of the tokenizers library: its failures are plain exceptions, or panics, which are no `Exception`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace_proto.pure.faults import is_fault

from headrace_engine.errors import HeadraceError

_LONGEST_REASON = 300


@contextmanager
def guarded(refusal: Callable[[BaseException], HeadraceError]) -> Iterator[None]:
    """Turn what the library raises into a failure of ours.

    Args:
        refusal: makes it of what was raised.

    Raises:
        HeadraceError, ImportError: as they come; and the refusal.
    """
    try:
        yield
    except (HeadraceError, ImportError):
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        raise refusal(error) from error


def reason_of(error: BaseException) -> str:
    """What the library says, in a few words."""
    text = str(error) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."
