"""Cache events of a session: first the whole prefix cache of each model, then its changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace_engine.engine.cores.cached_blocks import CachedBlocks
from headrace_engine.engine.sessions.session_update import CacheEvent
from headrace_engine.ipc.step_output import CacheChange

_CHANGES_AT_ONCE = 1024


class CacheWatch:
    """Changes of all prefix caches that a session has yet to send. It copies one only while that is being sent.

    Args:
        read: returns the cached blocks of each running model, by name.
    """

    def __init__(self, read: Callable[[], Mapping[str, CachedBlocks]]) -> None:
        self._read = read
        self._followed: dict[str, _Followed] = {}
        self._gone: dict[str, None] = {}
        self._number = 1
        self.pending = False

    def poll(self) -> bool:
        """Look for news, and return `pending`: there are events to take."""
        found = self._read()
        for name in [name for name, one in self._followed.items() if found.get(name) is not one.blocks]:
            del self._followed[name]
            self._gone[name] = None
        for name in found.keys() - self._followed.keys():
            self._followed[name] = _Followed(name, found[name])
            self._gone.pop(name, None)  # Its events begin with CLEARED.
        self.pending = bool(self._gone) or any(one.behind for one in self._followed.values())
        return self.pending

    def take(self, keys: int) -> tuple[list[CacheEvent], int]:
        """Remove and return the oldest events, with about so many keys, and the number of the first of them."""
        events = [CacheEvent(name, None, []) for name in self._gone]
        self._gone.clear()
        for one in self._followed.values():
            while one.behind and keys > 0:
                events.append(event := one.take(keys))
                keys -= len(event.keys) + 1
        self.pending = any(one.behind for one in self._followed.values())
        first, self._number = self._number, self._number + len(events)
        return events, first


class _Followed:
    """One model's cache, sent up to a number."""

    def __init__(self, name: str, blocks: CachedBlocks) -> None:
        self.blocks = blocks
        self._name = name
        self._sent = -1
        self._waiting: deque[CacheEvent] = deque()

    @property
    def behind(self) -> bool:
        """True if there is something to send."""
        return bool(self._waiting) or self._sent != self.blocks.next

    def take(self, keys: int) -> CacheEvent:
        """Return the next event, with at most so many keys."""
        if self._sent < self.blocks.first:
            self._sent = self.blocks.next
            self._waiting = deque([CacheEvent(self._name, None, []), *map(self._event, self.blocks.whole())])
        elif not self._waiting:
            changes = self.blocks.since(self._sent, _CHANGES_AT_ONCE)
            self._sent += len(changes)
            self._waiting.extend(map(self._event, changes))
        event = self._waiting.popleft()
        if len(event.keys) <= keys:
            return event
        parent = event.keys[keys - 1] if event.stored else b""
        self._waiting.appendleft(replace(event, keys=event.keys[keys:], parent=parent))
        return replace(event, keys=event.keys[:keys])

    def _event(self, change: CacheChange) -> CacheEvent:
        size = self.blocks.block_size if change.stored else 0
        return CacheEvent(self._name, change.stored, change.keys, change.parent, change.host, size)
