"""Servers' messages in Python terms: methods and arguments instead of the wire's methods and fields."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace_proto.v1 import model_service_pb2, request_service_pb2

_SERVICES = (model_service_pb2.DESCRIPTOR.services_by_name, request_service_pb2.DESCRIPTOR.services_by_name)
_CALLS = [call.name for services in _SERVICES for service in services.values() for call in service.methods]
METHODS = {
    call: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", call).lower()
    for call in _CALLS
    if re.search("(Model|Request|Adapter)s?$", call)
}
"""The client's method for each method of the wire."""

_QUOTED_OR_CALL = re.compile(rf"""(?<!\w)'[^']*'|"[^"]*"|\b({"|".join(METHODS)})\b""")
_GROUPS = re.compile(r"^(config|chat)\.")
_IDS = re.compile(r"^token_ids\b")


def in_methods(message: str) -> str:
    """Return a message with the client's method names: "start it first (start_model)". Quoted text is unchanged."""
    return _QUOTED_OR_CALL.sub(lambda found: METHODS[found[1]] if found[1] else found[0], message)


def argument(path: str) -> str:
    """Return the argument for a field path: "ids[0]" for "token_ids[0]", "top_p" for "config.top_p"."""
    return _IDS.sub("ids", _GROUPS.sub("", path))


def in_arguments(message: str, paths: Iterable[str]) -> str:
    """Return a message with arguments instead of these field paths."""
    for path in paths:
        name = argument(path).replace("\\", r"\\")
        message = re.sub(rf"(^|; ){re.escape(path)}(?!\w)", rf"\g<1>{name}", message)
    return message
