"""Arenas of packed matrices, as contents of packed-weights files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.weights.arena import Arena
from headrace_engine.backends.weight_file import matrix_fields, matrix_of


class ArenaContents:
    """Implements weight_file.Contents. A file is the same for any number of memory nodes.

    Args:
        arena: to be written; empty, to be filled.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """See Contents."""
        return {name: matrix_fields(entries.matrix) for name, entries in self._arena.entries.items()}

    def pieces(self, name: str) -> list[NDArray[np.uint8]]:
        """See Contents."""
        return self._arena.bytes_of(self._arena.entries[name])

    def add(self, name: str, described: Mapping[str, Any]) -> int:
        """See Contents."""
        self._arena.add(name, matrix_of(described))
        return self._arena.entries[name].nbytes

    def fill(self, name: str, data: memoryview) -> None:
        """See Contents."""
        # A view of the file, which is unmapped afterwards: it is copied here, and nothing of it is kept.
        source, at = np.frombuffer(data, dtype=np.uint8), 0
        for piece in self.pieces(name):
            np.copyto(piece, source[at : at + piece.nbytes])
            at += piece.nbytes

    def clear(self) -> None:
        """See Contents."""
        self._arena.clear()
