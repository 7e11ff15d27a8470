"""Headers of the answers to requests that were accepted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from headrace.types import AcceptedRequest

from headrace_gateway.http.failures import named

WARNINGS = "headrace-warnings"
"""Header with what was accepted and looks like a mistake, such as a field that has no effect."""

_MAX_BYTES = 2048
"""Maximum bytes of the warnings in the header, besides the last one: proxies take headers of some 4 KiB in all."""

_MAX_MESSAGE = 512
"""Maximum bytes of one message there, besides the number of others like it."""

_NUMBER = re.compile(r"\d+")


def headers_of(
    requests: Iterable[tuple[AcceptedRequest, Mapping[str, str]]], request_id: str = "x-request-id"
) -> dict[str, str]:
    """Return the headers of the answer to one or more requests: the id of the first, and the warnings of all.

    Args:
        requests: each with what the API calls its fields, as of `failure_of`.
        request_id: name of the header with the id.
    """
    listed = list(requests)
    warnings = _told(listed)
    found = {request_id: listed[0][0].request_id}
    return found | {WARNINGS: _written(warnings)} if warnings else found


def _told(requests: list[tuple[AcceptedRequest, Mapping[str, str]]]) -> list[tuple[str, str, int]]:
    """Return fields and messages, of those of several prompts that differ in numbers alone the first, and how often."""
    told: dict[tuple[str, str], None] = {}
    more: Counter[tuple[str, str]] = Counter()
    for accepted, names in requests:
        found = [named(warning.field, warning.message, names) for warning in accepted.warnings]
        known = set(map(_kind, told))
        more.update({_kind(one) for one in found if _kind(one) in known and one not in told})
        told |= dict.fromkeys(one for one in found if _kind(one) not in known)
    return [(*one, more.pop(_kind(one), 0)) for one in told]


def _kind(warning: tuple[str, str]) -> tuple[str, str]:
    field, message = warning
    return field, _NUMBER.sub("", message)


def _written(warnings: list[tuple[str, str, int]]) -> str:
    """Return warnings as a list in JSON, in ASCII; the last one counts those that there is no room for."""
    entries: list[str] = []
    room = _MAX_BYTES
    for entry in (_entry(*warning) for warning in warnings):
        if len(entry) <= room:
            room -= len(entry)
            entries.append(entry)
    if left := len(warnings) - len(entries):
        entries.append(_encoded({"message": f"warnings that do not fit into {_MAX_BYTES} bytes: {left}"}))
    return f"[{','.join(entries)}]"


def _entry(field: str, message: str, more: int) -> str:
    """Return one warning; of a message that is too long the beginning, and a sign of that."""
    sizes = accumulate(len(_encoded(one)) - 2 for one in message[: _MAX_MESSAGE + 1])
    kept = sum(size <= _MAX_MESSAGE for size in sizes)
    text = message if kept == len(message) else f"{message[:kept]}\u2026"
    return _encoded({"field": field, "message": f"{text} (and {more} more like it of other prompts)" if more else text})


def _encoded(content: Any) -> str:
    """Return JSON that a header can have: besides what JSON escapes, it may not have DEL."""
    return json.dumps(content, separators=(",", ":")).replace("\x7f", r"\u007f")
