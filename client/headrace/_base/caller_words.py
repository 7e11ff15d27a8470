"""What servers say, in the words of Python callers: methods and arguments where the wire has calls and fields."""

from __future__ import annotations

import re
from collections.abc import Iterable

METHODS = {
    "InstallModel": "install_model",
    "StartModel": "start_model",
    "StopModel": "stop_model",
    "ReleaseModel": "release_model",
    "GetModel": "get_model",
    "ListModels": "list_models",
    "WatchModel": "watch_model",
    "InspectModel": "inspect_model",
    "StartRequest": "start_request",
    "StopRequest": "stop_request",
    "ReleaseRequest": "release_request",
    "SyncRequest": "sync_request",
    "GetRequest": "get_request",
    "ListRequests": "list_requests",
}
"""The client's method for a call of the wire."""

_QUOTED_OR_CALL = re.compile(rf"""(?<!\w)'[^']*'|"[^"]*"|\b({"|".join(METHODS)})\b""")
_GROUPS = re.compile(r"^(config|chat)\.")
_IDS = re.compile(r"^token_ids\b")


def in_methods(message: str) -> str:
    """A message whose calls are methods: "start it first (start_model)". What it quotes stays as it is."""
    return _QUOTED_OR_CALL.sub(lambda found: METHODS[found[1]] if found[1] else found[0], message)


def argument(path: str) -> str:
    """The argument that a field of the wire comes from: "ids[0]" of "token_ids[0]", "top_p" of "config.top_p"."""
    return _IDS.sub("ids", _GROUPS.sub("", path))


def in_arguments(message: str, paths: Iterable[str]) -> str:
    """A message in which these fields of the wire are arguments."""
    for path in paths:
        told = argument(path).replace("\\", r"\\")
        message = re.sub(rf"(^|; ){re.escape(path)}(?!\w)", rf"\g<1>{told}", message)
    return message
