"""A gate before the steps of a core: a test sets how many it may take, and so decides where a fault occurs."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

from support.clocks.waiting import wait_until

_TAKEN, _ALLOWED = 0, 1
_ANY_NUMBER = 2**63


class Gate:
    """Two numbers in a file: steps taken by cores, and steps allowed. Open until it is shut.

    Args:
        path: the file, shared by tests and cores; created if missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(struct.pack("<QQ", 0, _ANY_NUMBER))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")

    @property
    def taken(self) -> int:
        """Number of steps taken so far."""
        return self._numbers[_TAKEN]

    def open(self) -> None:
        """Let every step pass."""
        self._numbers[_ALLOWED] = _ANY_NUMBER

    def shut(self) -> None:
        """Let no step pass. One that has begun goes on."""
        self._numbers[_ALLOWED] = self.taken

    def let(self, steps: int) -> None:
        """Let `steps` steps pass, and wait until they have."""
        self._numbers[_ALLOWED] = end = self.taken + steps
        wait_until(lambda: self.taken >= end, f"the core takes no {steps} steps")

    def allow(self, steps: int) -> None:
        """Let `steps` steps pass, whenever there is something to compute."""
        self._numbers[_ALLOWED] = self.taken + steps

    def pass_through(self) -> None:
        """Wait, in the core, until a step may be taken, and count it."""
        while self._numbers[_TAKEN] >= self._numbers[_ALLOWED]:
            time.sleep(0.001)
        self._numbers[_TAKEN] += 1
