"""Failures as the command line words them: with commands for methods, and advice on which command helps."""

from __future__ import annotations

import re

from headrace.errors import HeadraceError

_COMMANDS = {
    "install_model": "headrace install {model} PATH",
    "start_model": "headrace start {model}",
    "stop_model": "headrace stop {model}",
    "release_model": "headrace release {model}",
    "load_adapter": "headrace load-adapter {model} NAME PATH",
    "unload_adapter": "headrace unload-adapter {model} NAME",
    "list_adapters": "headrace adapters {model}",
    "watch_model": "headrace models",
    "get_model": "headrace models",
    "list_models": "headrace models",
}
_CALLS = re.compile(rf"\b({'|'.join(_COMMANDS)})\b")
_FAILED_CALL = re.compile(rf"^({'|'.join(_COMMANDS)}): ")

_REPLACE = "headrace install {model} PATH replaces it, headrace release {model} frees the name"
_LOOK = "headrace models shows its state"
_ADVICE = {
    "UNKNOWN_MODEL": "headrace models lists the models",
    "MODEL_EXISTS": "headrace release {model} frees the name, after headrace stop {model} if it runs",
    "BAD_MODEL": _REPLACE,
    "OUT_OF_MEMORY": _REPLACE,
    "FAILED": _REPLACE,
    "INSTALLING": _LOOK,
    "STARTING": _LOOK,
    "STOPPING": _LOOK,
    "INITIAL": "headrace start {model} starts it",
    "STOPPED": "headrace start {model} starts it",
    "NO_ENGINE": "headrace models lists the models of each engine",
    "TLS_MISMATCH": "--ca FILE connects over TLS, --ca system to servers with a public certificate",
    "BAD_API_KEY": "$HEADRACE_API_KEY is the key to send",
    "MODEL_STARTING": _LOOK,
    "UNAVAILABLE": "is a server running there? --address HOST:PORT or $HEADRACE_ADDRESS selects another",
}


def in_commands(text: str, model: str) -> str:
    """Return a message with commands instead of methods: "start it first (headrace start smol)"."""
    return _CALLS.sub(lambda call: _COMMANDS[call[1]].format(model=model or "NAME"), text)


def advice(error: HeadraceError, model: str, state: str = "") -> str | None:
    """Return which command helps after a failure; None if the message says so itself, or no command does.

    Args:
        error: the failure.
        model: name of the model in the command; "": none.
        state: state of the model; "": the one in the failure's details.
    """
    if _CALLS.search(_without_call(error.message)):
        return None
    words = _ADVICE.get(state or error.details.get("state", "")) or _ADVICE.get(error.reason)
    return words.format(model=model or "NAME") if words is not None else None


def sentence(error: HeadraceError, model: str, state: str = "") -> str:
    """Return a failure as one line: `model "smol" is INITIAL. [WRONG_STATE] (headrace start smol starts it)`."""
    command = advice(error, model, state)
    line = " ".join(in_commands(_without_call(str(error)), model).splitlines())
    return line if command is None else f"{line} ({command})"


def _without_call(text: str) -> str:
    """Remove the leading method name; the user typed the command."""
    return _FAILED_CALL.sub("", text)
