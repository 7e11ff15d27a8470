"""Guard calls of the tokenizers library, which raises exceptions and panics; the latter are no `Exception`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace_proto.pure.faults import is_fault

from headrace_engine.errors import HeadraceError

_LONGEST_REASON = 300


@contextmanager
def guarded(refusal: Callable[[BaseException], HeadraceError]) -> Iterator[None]:
    """Convert errors of the library to ours.

    Args:
        refusal: builds our error from the library's.

    Raises:
        HeadraceError, ImportError: unchanged; any other error as converted by `refusal`.
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
    """Return a short form of the library's message."""
    text = str(error) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."
