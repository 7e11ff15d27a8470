"""Traces: W3C's trace context between the parts, and spans by OpenTelemetry in processes that use it.

A process uses it once it has imported `opentelemetry.trace`. In all others nothing is done, and spans cost a look-up.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

HEADER = "traceparent"
"""Metadata of calls, and header of HTTP, with the span that a call belongs to."""

_FORM = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-[!-~]{0,128})?")
_NAME = "headrace"

Event = tuple[str, float]
"""Name of what happened, and when, in seconds since the Unix epoch."""


def is_on() -> bool:
    """True if this process may make spans."""
    return "opentelemetry.trace" in sys.modules


def is_traceparent(value: object) -> bool:
    """True if a value has the form of W3C's trace context."""
    return isinstance(value, str) and _FORM.fullmatch(value) is not None


def trace_id(traceparent: str) -> str:
    """Return the id of the trace that a trace context names; "" if it has another form."""
    found = _FORM.fullmatch(traceparent)
    return "" if found is None else found[1]


def current() -> str:
    """Return the trace context of the current span; "" if there is none."""
    return _traceparent(_api().get_current_span()) if is_on() else ""


@contextmanager
def span(name: str, parent: str = "", attributes: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Make a span of a block, and yield its trace context, for what the block calls.

    Args:
        parent: trace context of its parent; "": the current span is, if there is one.
        attributes: of the span.
    """
    if not is_on():
        yield parent
        return
    made = _start(name, parent, attributes)
    try:
        yield _traceparent(made) or parent
    except BaseException as error:
        # Not its text, which may quote what a user sent.
        made.set_status(_api().StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        made.end()


def record(
    name: str,
    parent: str,
    began: float,
    ended: float,
    attributes: Mapping[str, Any] | None = None,
    events: Iterable[Event] = (),
    *,
    failed: str = "",
) -> str:
    """Make a span of what is over, and return its trace context. Only where `is_on`.

    Args:
        began, ended: seconds since the Unix epoch.
        failed: why it failed; "": it did not.
    """
    made = _start(name, parent, attributes, began)
    for event, time in events:
        made.add_event(event, timestamp=_nanoseconds(time))
    if failed:
        made.set_status(_api().StatusCode.ERROR, failed)
    made.end(_nanoseconds(ended))
    return _traceparent(made)


def _api() -> Any:
    return sys.modules["opentelemetry.trace"]


def _start(name: str, parent: str, attributes: Mapping[str, Any] | None, began: float | None = None) -> Any:
    time = None if began is None else _nanoseconds(began)
    tracer = _api().get_tracer(_NAME)
    return tracer.start_span(name, _context(parent), attributes=dict(attributes or {}), start_time=time)


def _context(parent: str) -> Any:
    found = _FORM.fullmatch(parent)
    if found is None:
        return None
    api = _api()
    trace, of, flags = (int(part, 16) for part in found.groups())
    known = api.SpanContext(trace, of, is_remote=True, trace_flags=api.TraceFlags(flags))
    return api.set_span_in_context(api.NonRecordingSpan(known))


def _traceparent(made: Any) -> str:
    known = made.get_span_context()
    return f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}" if known.is_valid else ""


def _nanoseconds(time: float) -> int:
    return int(time * 1e9)
