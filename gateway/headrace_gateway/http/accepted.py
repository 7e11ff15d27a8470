"""Headers of the answers to requests that were accepted."""

from __future__ import annotations

import json
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
"""Maximum bytes of one message there."""


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


def _told(requests: list[tuple[AcceptedRequest, Mapping[str, str]]]) -> list[tuple[str, str]]:
    """Return the fields and messages of the first warnings of each field; one says how many more there are."""
    told: dict[tuple[str, str], None] = {}
    more: Counter[str] = Counter()
    for accepted, names in requests:
        found = [named(warning.field, warning.message, names) for warning in accepted.warnings]
        known = {field for field, _ in told}
        more.update({field for field, message in found if field in known and (field, message) not in told})
        told |= dict.fromkeys(one for one in found if one[0] not in known)
    counted = [(field, message, more.pop(field, 0)) for field, message in told]
    return [
        (field, f"{text} (and {count} more like it of other prompts)" if count else text)
        for field, text, count in counted
    ]


def _written(warnings: list[tuple[str, str]]) -> str:
    """Return warnings as a list in JSON, in ASCII; the last one counts those that there is no room for."""
    entries: list[str] = []
    room = _MAX_BYTES
    for entry in (_entry(field, message) for field, message in warnings):
        if len(entry) <= room:
            room -= len(entry)
            entries.append(entry)
    if left := len(warnings) - len(entries):
        entries.append(_encoded({"message": f"warnings that do not fit into {_MAX_BYTES} bytes: {left}"}))
    return f"[{','.join(entries)}]"


def _entry(field: str, message: str) -> str:
    """Return one warning; of a message that is too long the beginning, and a sign of that."""
    sizes = accumulate(len(json.dumps(one)) - 2 for one in message)
    kept = sum(size <= _MAX_MESSAGE for size in sizes)
    return _encoded({"field": field, "message": message if kept == len(message) else f"{message[:kept]}\u2026"})


def _encoded(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"))
