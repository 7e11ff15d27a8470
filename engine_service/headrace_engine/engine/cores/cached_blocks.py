"""The blocks in a model's prefix cache, as its core reports them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from headrace_engine.block_keys import CacheChanges
from headrace_engine.ipc.step_output import CacheChange

MOST_KEYS = 65_536
"""Keys in the latest changes that are kept; who is further behind begins with the whole cache."""


class CachedBlocks:
    """The keys of the blocks, by tier, and the latest changes, numbered.

    The core's pool and host tier bound the blocks.

    Attributes:
        first: number of the first change that is kept.
        block_size: ids of a block.
    """

    def __init__(self) -> None:
        self.first = self.block_size = 0
        self._tiers: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
        self._changes: deque[CacheChange] = deque()
        self._keys = 0

    @property
    def next(self) -> int:
        """Number of the next change."""
        return self.first + len(self._changes)

    def apply(self, changes: Iterable[CacheChange]) -> None:
        """Record changes."""
        for change in changes:
            self._record(change)
            self._changes.append(change)
            self._keys += len(change.keys)
        while self._keys > MOST_KEYS:
            self._keys -= len(self._changes.popleft().keys)
            self.first += 1

    def clear(self, block_size: int) -> None:
        """Record that nothing is cached, since a new core begins, with blocks of so many ids."""
        self.block_size = block_size
        self.first = self.next + 1
        self._changes.clear()
        self._keys = 0
        for tier in self._tiers:
            tier.clear()

    def whole(self) -> list[CacheChange]:
        """Return changes from an empty cache to this one."""
        changes = CacheChanges()
        for host, tier in enumerate(self._tiers):
            for key, parent in tier.items():
                changes.stored(key, parent, host=bool(host))
        return changes.take()

    def since(self, number: int, most: int) -> list[CacheChange]:
        """Return at most so many changes from a number on, which must not be below `first`."""
        begin = number - self.first
        return list(islice(self._changes, begin, begin + most))

    def _record(self, change: CacheChange) -> None:
        tier, parent = self._tiers[change.host], change.parent
        for key in change.keys:
            if change.stored:
                tier[key], parent = parent, key
            else:
                tier.pop(key, None)
