"""The environment variables that the command line reads, each here alone. docs/environment.md says what they mean."""

from __future__ import annotations

import os

_ADDRESS = "HEADRACE_ADDRESS"
_API_KEY = "HEADRACE_API_KEY"


def server_address() -> str:
    """Return the server, or several separated by commas, that commands talk to where they name none."""
    return os.environ.get(_ADDRESS, "localhost:7070")


def api_key() -> str | None:
    """Return the key that is sent with each call; None where it is not set, or empty."""
    return os.environ.get(_API_KEY) or None
