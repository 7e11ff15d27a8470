"""Writing of a safetensors file whose tensors become known one after the other."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace_engine.errors import AlreadyExists
from headrace_engine.regular_files import create_regular

_LENGTH = struct.Struct("<Q")
_ENTRY = 200
"""Maximum bytes of a tensor's entry in the header, besides its name."""


class Container:
    """A file that is written under another name, and gets its own by `commit`.

    Args:
        path: the file.
        names: names of all tensors to come; they bound the header's size.

    Raises:
        AlreadyExists: another process is writing it.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path, self._part = path, path.with_name(f"{path.name}.part")
        self._entries: dict[str, Any] = {}
        self._header_bytes = -(-sum(len(json.dumps(name)) + _ENTRY for name in names) // 8) * 8 + 8
        self._end = 0
        self._file = create_regular(self._part)
        try:
            self._lock()
            self._file.truncate(0)
            self._file.seek(_LENGTH.size + self._header_bytes)
        except BaseException:
            self._file.close()
            raise

    def add(self, name: str, dtype: str, shape: Sequence[int], parts: Iterable[Any]) -> int:
        """Write a tensor, whose bytes come in parts; return their crc32."""
        crc, begin = 0, self._end
        for part in parts:
            crc = zlib.crc32(part, crc)
            self._file.write(part)
            self._end += part.nbytes if hasattr(part, "nbytes") else len(part)
        self._entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, self._end]}
        return crc

    def header(self) -> bytes:
        """Return the header, with blanks up to its reserved size."""
        header = json.dumps(self._entries).encode()
        assert len(header) <= self._header_bytes
        return header.ljust(self._header_bytes)

    def commit(self) -> None:
        """Write the header, and give the file its name."""
        self._file.seek(0)
        self._file.write(_LENGTH.pack(self._header_bytes) + self.header())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._part.replace(self._path)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyExists(f"{self._path.name} is being written by another call: wait for it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._part.unlink(missing_ok=True)
