"""Prefix cache: an index of blocks by the tokens they hold, so that no prefix is computed twice.

The index owns no blocks. The pool or the host tier owns each block and reports when it evicts one; the index follows,
by moving the entry to the other tier or dropping it. A sequence that starts on found blocks gets references to them
from the pool (`adopt`), and registers its own blocks as they fill up (`register`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from headrace_engine.block_keys import CacheChanges, Scope, block_content, block_key
from headrace_engine.core.kv.block_pool import BlockPool, IntegrityError
from headrace_engine.core.kv.host_tier import HostTier


@dataclass(slots=True)
class Cursor:
    """Position of one sequence in the cache.

    Attributes:
        hashes: key and packed ids of the sequence's leading full blocks, each hashed once.
        known: number of leading blocks that were adopted or registered.
        parent: serial number of the entry for the last of those; the scope if there is none.
    """

    scope: Scope
    block_size: int
    hashes: list[tuple[bytes, bytes]] = field(default_factory=list)
    known: int = 0
    parent: int | Scope = field(init=False)

    def __post_init__(self) -> None:
        self.parent = self.scope

    def branch(self, blocks: int) -> Cursor:
        """Return the position of a sequence that shares the first `blocks` blocks; at least those that are known."""
        other = Cursor(self.scope, self.block_size, self.hashes[:blocks], self.known)
        other.parent = self.parent
        return other

    def read(self, ids: Sequence[int], blocks: int) -> None:
        """Hash the first `blocks` blocks of ids that are not hashed yet."""
        for i in range(len(self.hashes), blocks):
            content = block_content(ids, i, self.block_size)
            parent = self.hashes[-1][0] if self.hashes else self.scope.key
            self.hashes.append((block_key(parent, content), content))


@dataclass(slots=True)
class _Entry:
    """One block with known contents. Serial numbers distinguish entries even where keys collide.

    Attributes:
        location: current location of the contents; see PrefixCache.
        parent_key: key of the block before; empty for the first of a prompt.
        brief: the contents are short-lived.
    """

    serial: int
    location: int
    key: bytes
    content: bytes
    parent: int | Scope
    parent_key: bytes
    brief: bool

    def holds(self, content: bytes, parent: int | Scope) -> bool:
        return self.content == content and self.parent == parent


class PrefixCache:
    """Finds blocks by the tokens they hold. Each block has at most one entry, so the two tiers bound its size.

    A matching key is not enough for a hit: ids and parent are compared too. Blocks are shared only when full, and full
    blocks are never written again.

    A *location* is the number of a pool block or, from `pool.total` on, of a host block. Contents have one location at
    a time: they move to host memory when the pool evicts them, and back when a sequence starts with them.

    Args:
        pool: the blocks that sequences use.
        host: receives evicted blocks; None: their contents are lost.

    Attributes:
        changes: what came and went since they were last taken, but for short-lived contents.
    """

    def __init__(self, pool: BlockPool, host: HostTier | None = None) -> None:
        self._pool = pool
        self._host = host or HostTier(0)
        self._serials = count(1)
        self._entries: dict[bytes, _Entry] = {}
        self._by_location: dict[int, _Entry] = {}
        self.changes = CacheChanges()
        pool.on_evict = self._evict
        self._host.on_evict = lambda block: self._drop(pool.total + block)

    def __len__(self) -> int:
        """Return the number of blocks with known contents, used or not."""
        return len(self._by_location)

    def find(self, cursor: Cursor, ids: Sequence[int]) -> list[int]:
        """Return the locations of the longest known prefix of ids, except the last token: it is always computed."""
        locations: list[int] = []
        parent: int | Scope = cursor.scope
        limit = (len(ids) - 1) // self._pool.block_size
        cursor.read(ids, limit)
        for key, content in islice(cursor.hashes, limit):
            entry = self._entries.get(key)
            if entry is None or not entry.holds(content, parent):
                break
            locations.append(entry.location)
            parent = entry.serial
        return locations

    def in_pool(self, locations: Sequence[int]) -> list[int]:
        """Return the locations in the pool. Each of the others needs a pool block to be fetched into."""
        return [location for location in locations if location < self._pool.total]

    def adopt(self, cursor: Cursor, locations: Sequence[int]) -> list[int]:
        """Start, or resume, the sequence of this cursor on the locations that `find` just returned.

        The caller owns one reference to each returned block.

        Returns:
            One pool block per location. Contents fetched from host memory arrive before the next step.
        """
        entries = [self._by_location[location] for location in locations]
        # References first: fetching allocates blocks, and so may evict every cached block that nobody refers to.
        self._pool.share(self.in_pool(locations))
        self._fetch([entry for entry in entries if entry.location >= self._pool.total])
        cursor.known = len(entries)
        cursor.parent = entries[-1].serial if entries else cursor.scope
        return [entry.location for entry in entries]

    def register(self, cursor: Cursor, ids: Sequence[int], blocks: Sequence[int], computed: int) -> None:
        """Add the newly filled blocks of a sequence to the index; its first `computed` tokens are in `blocks`."""
        full = computed // self._pool.block_size
        if full == cursor.known:
            return
        cursor.read(ids, full)
        new, brief = slice(cursor.known, full), cursor.scope.group > 0
        before = cursor.hashes[cursor.known - 1][0] if cursor.known else b""
        for block, (key, content) in zip(blocks[new], cursor.hashes[new], strict=True):
            entry = _Entry(0, block, key, content, cursor.parent, before, brief)
            cursor.parent, before = self._register(entry), key
        cursor.known = full

    def forget(self, location: int) -> None:
        """Drop a location from the index. Sequences that use the block keep it."""
        if location in self._by_location:
            self._drop(location)
            self._free(location)

    def drop_before(self, date: float) -> None:
        """Evict, from both tiers, contents that were last used before this time."""
        self._pool.drop_before(date)  # First: what it moves to the host tier is dropped there in turn.
        self._host.drop_before(date)

    def check_integrity(self) -> None:
        """Check that the two indexes agree with each other and with the host tier.

        Raises:
            IntegrityError: they differ.
        """
        if {entry.location: entry for entry in self._entries.values()} != self._by_location:
            raise IntegrityError("the two indexes of the prefix cache differ")
        self._host.check_integrity(
            [location - self._pool.total for location in self._by_location if location >= self._pool.total]
        )

    def _register(self, new: _Entry) -> int:
        """Return the serial number of the entry that stands for this content from now on."""
        present = self._entries.get(new.key)
        if present is not None and present.holds(new.content, new.parent):
            if present.location >= self._pool.total:
                # Computed again while its contents were on the host: the new block takes their place.
                self._free(present.location)
                self._move(present, new.location)
            return present.serial  # Another sequence computed the same first: its block serves, this one stays private.
        if present is not None:
            self.forget(present.location)  # A collision, or a tail without its head: the newer one is of use.
        new.serial = next(self._serials)
        self._entries[new.key] = self._by_location[new.location] = new
        # The sequence still owns the block: this is for the pool, once the last reference is released.
        self._pool.keep(new.location, brief=new.brief)
        self._note(new, stored=True)
        return new.serial

    def _fetch(self, entries: Sequence[_Entry]) -> None:
        """Move entries from host memory into the pool."""
        # Reserved first: allocating may evict pool blocks into the host tier, which must not overwrite these.
        blocks = [entry.location - self._pool.total for entry in entries]
        self._host.reserve(blocks)
        # The reference that `allocate` takes is the one that `adopt` hands to the sequence.
        for entry, block, target in zip(entries, blocks, self._pool.allocate(len(blocks)), strict=True):
            self._move(entry, target)
            self._host.fetch(block, target)

    def _evict(self, block: int, date: float) -> None:
        """Follow an eviction from the pool: move the entry to the host tier, or drop it if brief or out of space."""
        location = None if self._by_location[block].brief else self._host.accept(block, date)
        if location is None:
            self._drop(block)
            return
        entry = self._by_location.pop(block)
        self._note(entry, stored=False)
        entry.location = self._pool.total + location
        self._by_location[entry.location] = entry
        self._note(entry, stored=True)

    def _move(self, entry: _Entry, block: int) -> None:
        """Set the location of an entry to a used pool block."""
        del self._by_location[entry.location]
        self._note(entry, stored=False)
        entry.location = block
        self._by_location[block] = entry
        self._pool.keep(block)
        self._note(entry, stored=True)

    def _drop(self, location: int) -> None:
        entry = self._by_location.pop(location)
        del self._entries[entry.key]
        self._note(entry, stored=False)

    def _free(self, location: int) -> None:
        """Let the owner of a location, pool or host tier, stop keeping its contents."""
        if location < self._pool.total:
            self._pool.forget(location)
        else:
            self._host.forget(location - self._pool.total)

    def _note(self, entry: _Entry, *, stored: bool) -> None:
        if not entry.brief:
            host = entry.location >= self._pool.total
            if stored:
                self.changes.stored(entry.key, entry.parent_key, host=host)
            else:
                self.changes.removed(entry.key, host=host)
