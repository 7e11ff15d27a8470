"""The environment variables of the command line; docs/environment.md describes them."""

from __future__ import annotations

import os

_ADDRESS = "HEADRACE_ADDRESS"
_API_KEY = "HEADRACE_API_KEY"
_AUTHORITIES = "HEADRACE_CA"


def server_address() -> str:
    """Return the default server address, or several separated by commas."""
    return os.environ.get(_ADDRESS, "localhost:7070")


def api_key() -> str | None:
    """Return the API key to send with each call; None if it is unset or empty."""
    return os.environ.get(_API_KEY) or None


def authorities() -> str:
    """Return the PEM file of the authorities that servers are checked against; "": connect without TLS."""
    return os.environ.get(_AUTHORITIES, "")
