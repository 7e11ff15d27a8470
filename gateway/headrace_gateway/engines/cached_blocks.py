"""The blocks in an engine's prefix caches, as its cache events report."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_proto.v1 import session_pb2 as wire

MOST_BLOCKS = 250_000
"""Blocks that are kept of one engine, some 30 MB; those that come when there are so many are not known."""


class CachedBlocks:
    """The keys of the blocks of each model; nothing is known without a session stream."""

    def __init__(self) -> None:
        self._models: dict[str, dict[bytes, int]] = {}
        self._next = 1

    def __len__(self) -> int:
        return sum(map(len, self._models.values()))

    def lost(self) -> None:
        """Forget everything: the stream has ended."""
        self._models.clear()
        self._next = 1

    def follows(self, model_name: str) -> bool:
        """True if the engine reports what it has of a model."""
        return model_name in self._models

    def known(self, model_name: str, keys: Sequence[bytes]) -> int:
        """Return the number of the last of these keys that the engine has, from 1 on; 0 if it has none."""
        held = self._models.get(model_name, {})
        return next((number for number in range(len(keys), 0, -1) if keys[number - 1] in held), 0)

    def apply(self, message: wire.CacheEvents) -> None:
        """Apply events.

        Raises:
            ValueError: events are missing before them.
        """
        if message.first_sequence != self._next:
            raise ValueError(f"cache event {message.first_sequence} came where {self._next} was due")
        self._next += len(message.events)
        for event in message.events:
            self._apply(event)

    def _apply(self, event: wire.CacheEvent) -> None:
        if event.kind == wire.CACHE_EVENT_KIND_CLEARED:
            self._models[event.model_name] = {}
            return
        held = self._models.setdefault(event.model_name, {})
        tier = 1 << event.tier
        if event.kind == wire.CACHE_EVENT_KIND_STORED:
            free = MOST_BLOCKS - len(self)
            for key in event.block_hashes:
                if key in held or free > 0:
                    free -= key not in held
                    held[key] = held.get(key, 0) | tier
        elif event.kind == wire.CACHE_EVENT_KIND_REMOVED:
            for key in event.block_hashes:
                if left := held.pop(key, 0) & ~tier:
                    held[key] = left
