"""How much memory processes add while they are used again and again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import psutil

ROUNDS = 6
"""Times that something is used, as a rule."""


class Growth:
    """The memory of processes after each round of use.

    What leaks grows in every round. Caches, pools and the pages that an allocator keeps grow in some of them, so the
    round in which a process grew least is the one that counts.
    """

    def __init__(self, pids: Iterable[int | None]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._resident: list[list[int]] = [[] for _ in self._processes]

    def read(self) -> None:
        """Note the memory after a round."""
        for process, sizes in zip(self._processes, self._resident, strict=True):
            sizes.append(process.memory_info().rss)

    def least(self) -> list[int]:
        """The bytes that each process added in the round after the first in which it added least."""
        return [min(later - earlier for earlier, later in pairwise(sizes)) for sizes in self._resident]
