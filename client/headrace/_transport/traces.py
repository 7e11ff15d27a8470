"""The trace that a call belongs to, in the metadata of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace_proto.pure import tracing

Metadata = tuple[tuple[str, str], ...]

_STARTS = frozenset({"StartRequest", "Generate"})


@contextmanager
def traced(method: str, metadata: Metadata) -> Iterator[Metadata]:
    """Yield a call's metadata with its span: one of its own for a start, else the current one.

    Args:
        method: full name of the method.
        metadata: all else.
    """
    if not tracing.is_on():
        yield metadata
    elif (name := method.rpartition("/")[2]) in _STARTS:
        with tracing.span("client.start", attributes={"rpc.method": name}) as trace:
            yield _with(metadata, trace)
    else:
        yield _with(metadata, tracing.current())


def _with(metadata: Metadata, trace: str) -> Metadata:
    return (*metadata, (tracing.HEADER, trace)) if trace else metadata
