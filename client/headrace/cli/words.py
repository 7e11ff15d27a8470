"""Failures in the words of the command line: which command is the way out."""

from __future__ import annotations

import re

from headrace.errors import HeadraceError

_COMMANDS = {
    "install_model": "headrace install {model} PATH",
    "start_model": "headrace start {model}",
    "stop_model": "headrace stop {model}",
    "release_model": "headrace release {model}",
    "watch_model": "headrace models",
    "get_model": "headrace models",
    "list_models": "headrace models",
}
_CALLS = re.compile(rf"\b({'|'.join(_COMMANDS)})\b")
_FAILED_CALL = re.compile(rf"^({'|'.join(_COMMANDS)}): ")

_REPLACE = "headrace install {model} PATH installs another in its place, headrace release {model} frees the name"
_LOOK = "headrace models shows when"
_WAYS_OUT = {
    "UNKNOWN_MODEL": "headrace models lists what there is",
    "MODEL_EXISTS": "headrace release {model} frees the name, after headrace stop {model} where it runs",
    "BAD_MODEL": _REPLACE,
    "OUT_OF_MEMORY": _REPLACE,
    "FAILED": _REPLACE,
    "INSTALLING": _LOOK,
    "STARTING": _LOOK,
    "STOPPING": _LOOK,
    "INITIAL": "headrace start {model} starts it",
    "STOPPED": "headrace start {model} starts it",
    "RUNNING": "headrace stop {model} stops it",
    "NO_ENGINE": "headrace models lists which engines have which models",
    "TLS_MISMATCH": "the command line speaks no TLS; the Python client does",
    "MODEL_STARTING": _LOOK,
    "UNAVAILABLE": "is a server there? --address HOST:PORT, or $HEADRACE_ADDRESS, names another",
}


def in_commands(text: str, model: str) -> str:
    """A message whose methods are commands: "start it first (headrace start smol)"."""
    return _CALLS.sub(lambda call: _COMMANDS[call[1]].format(model=model or "NAME"), text)


def way_out(error: HeadraceError, model: str, state: str = "") -> str | None:
    """What to do about a failure; None: its message says that itself, or there is no command for it.

    Args:
        error: the failure.
        model: the model that the command named; "": none.
        state: of the model; "": the one that the failure names.
    """
    if _CALLS.search(_without_call(error.message)):
        return None
    words = _WAYS_OUT.get(state or error.details.get("state", "")) or _WAYS_OUT.get(error.reason)
    return words.format(model=model or "NAME") if words is not None else None


def sentence(error: HeadraceError, model: str, state: str = "") -> str:
    """A failure as one line: `model "smol" is RUNNING. [WRONG_STATE] (headrace stop smol stops it)`."""
    way = way_out(error, model, state)
    line = " ".join(in_commands(_without_call(str(error)), model).splitlines())
    return line if way is None else f"{line} ({way})"


def _without_call(text: str) -> str:
    """A message without the call that failed at its begin: whoever gave the command knows which."""
    return _FAILED_CALL.sub("", text)
