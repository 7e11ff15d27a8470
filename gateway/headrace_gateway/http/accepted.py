"""Headers of the answers to requests that were accepted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.types import AcceptedRequest

from headrace_gateway.http.failures import named

WARNINGS = "headrace-warnings"
"""Header with what was accepted and looks like a mistake, such as a field that has no effect."""

_MAX_BYTES = 2048
"""Maximum bytes of the warnings in the header, besides the last one: proxies take headers of some 4 KiB in all."""


def headers_of(
    requests: Iterable[tuple[AcceptedRequest, Mapping[str, str]]], request_id: str = "x-request-id"
) -> dict[str, str]:
    """Return the headers of the answer to one or more requests: the id of the first, and the warnings of all.

    Args:
        requests: each with what the API calls its fields, as of `failure_of`.
        request_id: name of the header with the id.
    """
    listed = list(requests)
    warnings = dict.fromkeys(
        named(warning.field, warning.message, names) for accepted, names in listed for warning in accepted.warnings
    )
    found = {request_id: listed[0][0].request_id}
    return found | {WARNINGS: _written(list(warnings))} if warnings else found


def _written(warnings: list[tuple[str, str]]) -> str:
    """Return warnings as a list in JSON, in ASCII; the last one counts those that there is no room for."""
    entries = [_entry({"field": field, "message": message}) for field, message in warnings]
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry)
        if size > _MAX_BYTES:
            left = f"warnings that do not fit into {_MAX_BYTES} bytes: {len(entries) - count}"
            return f"[{','.join([*entries[:count], _entry({'message': left})])}]"
    return f"[{','.join(entries)}]"


def _entry(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"))
