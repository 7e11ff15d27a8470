"""The keys of a file, read again when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headrace_proto.server.logs import logger
from headrace_proto.server.secrets import digest
from headrace_proto.server.tls import file_stamp

from headrace_gateway.access.api_keys import MAX_KEY_LENGTH, ApiKey, KeyFileError, read_keys

log = logger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between looks at the file."""


class Keyring:
    """Finds keys. A file that has become unusable is logged, and the last good keys stay valid.

    Args:
        file: the key file.
        clock: monotonic clock, in seconds.

    Raises:
        KeyFileError: the file cannot be used.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._stamp = file_stamp(file)
        self._looked = clock()
        self._keys = self._read()

    def find(self, sent: str) -> ApiKey | None:
        """Return the key that was sent; None if it is none of them.

        Keys are looked up by their digest, so that time says nothing about how much of a wrong key was right.
        """
        self._refresh()
        return self._keys.get(digest(sent)) if 0 < len(sent) <= MAX_KEY_LENGTH else None

    @property
    def all(self) -> list[ApiKey]:
        """The keys."""
        self._refresh()
        return list(self._keys.values())

    def of_owner(self, owner: str) -> ApiKey | None:
        """Return a key of an owner, whose limits are those of its other keys; None: it has none (any more)."""
        self._refresh()
        return self._owners.get(owner)

    def knows(self, key: ApiKey) -> bool:
        """True if a key is still one of the file."""
        self._refresh()
        return key.digest in self._keys

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        stamp = file_stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = self._read()
        except KeyFileError as error:
            log.error("keys_not_reloaded", problem=str(error))
        else:
            log.info("keys_reloaded", keys=len(self._keys))

    def _read(self) -> dict[bytes, ApiKey]:
        keys = read_keys(self._file)
        self._owners = {key.owner: key for key in keys}
        return {key.digest: key for key in keys}
