"""The secret by which an engine recognizes its gateways."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

SECRET_KEY = "headrace-secret"
"""Metadata in which a gateway sends the secret to an engine."""

MIN_LENGTH = 32
"""Minimum characters of a secret: `openssl rand -hex 32` makes one of 64."""

MAX_LENGTH = 256
_MAX_BYTES = 64 << 10


def read_secrets(file: Path) -> tuple[str, ...]:
    """Read secrets from a file, one a line; the first is the one to send. Empty lines are left out.

    Raises:
        ValueError: the file cannot be read, has no secret, or one that is too short, too long or not printable ASCII.
    """
    try:
        if not file.is_file():
            raise ValueError(f"{file}: no such file")
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{file}: has more than {_MAX_BYTES} bytes, the limit of a file of secrets")
    secrets = tuple(line.strip() for line in data.decode("latin-1").splitlines() if line.strip())
    if not secrets:
        raise ValueError(f"{file}: has no secret; `openssl rand -hex 32` makes one")
    for number, secret in enumerate(secrets, start=1):
        if not MIN_LENGTH <= len(secret) <= MAX_LENGTH:
            allowed = f"{MIN_LENGTH} to {MAX_LENGTH}"
            raise ValueError(f"{file}: secret {number} has {len(secret)} characters; allowed: {allowed}")
        if not (secret.isascii() and secret.isprintable()):
            raise ValueError(f"{file}: secret {number} has characters other than printable ASCII")
    return secrets


def digest(text: str) -> bytes:
    """Return the SHA-256 of a secret or key."""
    return hashlib.sha256(text.encode()).digest()


def is_one_of(text: str, digests: Iterable[bytes]) -> bool:
    """True if a text has one of these digests. Takes the same time whichever it is."""
    own = digest(text)
    found = False
    for known in digests:
        found |= hmac.compare_digest(own, known)
    return found
