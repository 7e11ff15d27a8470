"""vLLM's events of the prefix cache. They name the ids of blocks, where the cache knows only keys of them.

So the ids of prompts are kept for a while: a block is reported once it is stored and its ids are known, and the block
before it has been reported.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from smg_grpc_proto.generated import common_pb2 as wire

from headrace_engine.engine.sessions.session_update import CacheEvent

MOST_BLOCKS = 65_536
"""Blocks whose ids are kept."""


class PromptBlocks:
    """The ids of blocks of prompts, by key; the newest are kept.

    Attributes:
        learned: number of blocks ever learned.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, tuple[int, array[int]]] = OrderedDict()
        self.learned = 0

    def learn(self, keys: Sequence[bytes], ids: Sequence[int], block_size: int) -> None:
        """Keep the ids of a prompt's first blocks."""
        for number, key in enumerate(keys):
            if key not in self._ids:
                self.learned += 1
                block = array("I", ids[number * block_size : (number + 1) * block_size])
                self._ids[key] = self.learned, block
        while len(self._ids) > MOST_BLOCKS:
            self._ids.popitem(last=False)

    def of(self, key: bytes) -> array[int] | None:
        """Return the ids of a block; None: they are not known."""
        found = self._ids.get(key)
        return None if found is None else found[1]

    def since(self, learned: int) -> Iterator[bytes]:
        """Yield the keys of blocks that were learned after a number, oldest first."""
        newest = []
        for key, (number, _) in reversed(self._ids.items()):
            if number <= learned:
                break
            newest.append(key)
        return reversed(newest)


class KvEvents:
    """The events of one subscriber.

    Args:
        blocks: the ids of blocks.
        first: number of its first batch.
    """

    def __init__(self, blocks: PromptBlocks, first: int) -> None:
        self._blocks, self._next = blocks, first
        self._learned = 0
        self._unsent: dict[tuple[bytes, bool], bytes] = {}
        self._sent: set[tuple[bytes, bool]] = set()

    def batch(self, events: Sequence[CacheEvent]) -> Any:
        """Return a batch of what is to be reported after these events of the cache; None: nothing."""
        batch = wire.KvEventBatch(timestamp=time.time(), dp_rank=0)
        for event in events:
            self._apply(event, batch)
        for key in self._blocks.since(self._learned):
            for host in (False, True):
                parent = self._unsent.get((key, host))
                if parent is not None:
                    self._store(key, parent, host, batch)
        self._learned = self._blocks.learned
        if not batch.events:
            return None
        batch.sequence_number, self._next = self._next, self._next + 1
        return batch

    def _apply(self, event: CacheEvent, batch: Any) -> None:
        if event.stored is None:
            self._unsent.clear()
            self._sent.clear()
            batch.events.add().cleared.SetInParent()
        elif event.stored:
            parent = event.parent
            for key in event.keys:
                self._store(key, parent, event.host, batch)
                parent = key
        else:
            self._remove(event, batch)

    def _store(self, key: bytes, parent: bytes, host: bool, batch: Any) -> None:
        ids = self._blocks.of(key)
        if ids is None or (parent and not self._has_sent(parent)):
            self._unsent[key, host] = parent
            return
        self._unsent.pop((key, host), None)
        self._sent.add((key, host))
        stored = batch.events.add().stored
        stored.tier = _tier(host)
        if parent:
            stored.parent_block_hash = _hash(parent)
        stored.blocks.add(block_hash=_hash(key), token_ids=ids, block_size=len(ids), cache_level=int(host))

    def _has_sent(self, key: bytes) -> bool:
        return (key, False) in self._sent or (key, True) in self._sent

    def _remove(self, event: CacheEvent, batch: Any) -> None:
        gone = []
        for key in event.keys:
            self._unsent.pop((key, event.host), None)
            if (key, event.host) in self._sent:
                self._sent.remove((key, event.host))
                gone.append(_hash(key))
        if gone:
            removed = batch.events.add().removed
            removed.block_hashes.extend(gone)
            removed.tier, removed.cache_level = _tier(event.host), int(event.host)


def _hash(key: bytes) -> int:
    return int.from_bytes(key[:8], "big", signed=True)


def _tier(host: bool) -> wire.KvCacheTier:
    return wire.KV_CACHE_TIER_HOST if host else wire.KV_CACHE_TIER_DEVICE
