"""Which blocks hold the keys and values of which tokens, so that no prefix is computed twice."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, islice

from headrace_engine.core.kv.block_pool import BlockPool, IntegrityError
from headrace_engine.core.kv.host_tier import HostTier


@dataclass(frozen=True, slots=True)
class Scope:
    """What decides about keys and values besides the ids. Blocks are shared inside one scope only.

    Attributes:
        revision: the model's weights, by a name that changes with them.
        kv_mode: how keys and values are stored.
        adapter: name of the LoRA adapter; "" = none.
        media_digest: digest of the media behind placeholder ids; "" = none.
        salt: chosen by the caller, to keep requests apart.
        group: sequences that share with each other alone; 0 = with all. What is kept for them is of no use once they
            have ended: it is the first to go, and never moves to host memory.
    """

    revision: str = ""
    kv_mode: str = ""
    adapter: str = ""
    media_digest: str = ""
    salt: str = ""
    group: int = 0

    @property
    def key(self) -> bytes:
        """The parent key of every first block in this scope."""
        fields = (self.revision, self.kv_mode, self.adapter, self.media_digest, self.salt, self.group)
        return block_key(b"", repr(fields).encode())


def block_key(parent: bytes, content: bytes) -> bytes:
    """The 128-bit name of a block, by the name of the block before it and its own ids."""
    return blake2b(parent + content, digest_size=16).digest()


@dataclass(slots=True)
class Cursor:
    """Where one sequence stands in the cache.

    Attributes:
        prints: key and packed ids of the sequence's leading full blocks, each hashed once.
        known: leading blocks of the sequence that the cache was told of, or told it.
        parent: serial number of the entry for the last of those; the scope itself where there is none.
    """

    scope: Scope
    block_size: int
    prints: list[tuple[bytes, bytes]] = field(default_factory=list)
    known: int = 0
    parent: int | Scope = field(init=False)

    def __post_init__(self) -> None:
        self.parent = self.scope

    def read(self, ids: Sequence[int], blocks: int) -> None:
        """Make prints of the first blocks of ids, where there are none yet."""
        for i in range(len(self.prints), blocks):
            content = array("I", ids[i * self.block_size : (i + 1) * self.block_size]).tobytes()
            parent = self.prints[-1][0] if self.prints else self.scope.key
            self.prints.append((block_key(parent, content), content))


@dataclass(slots=True)
class _Entry:
    """One block with known contents. Serial numbers tell apart what equal keys might confuse.

    Attributes:
        place: where they are now.
        brief: they are of no use for long.
    """

    serial: int
    place: int
    key: bytes
    content: bytes
    parent: int | Scope
    brief: bool

    def holds(self, content: bytes, parent: int | Scope) -> bool:
        return self.content == content and self.parent == parent


class PrefixCache:
    """Finds blocks by the tokens they hold. There is one entry a block at most, so the two tiers bound its size.

    A hit is never taken on a key's word: ids and parent are compared too. Blocks are only shared when full, and full
    blocks are never written again.

    A *place* is a block of the pool or, from the pool's size on, one of host memory. Contents are in one place at a
    time: they move to host memory when the pool evicts them, and back when somebody begins with them.

    Args:
        pool: the blocks that sequences use.
        host: where evicted ones go; None: they are given up.
    """

    def __init__(self, pool: BlockPool, host: HostTier | None = None) -> None:
        self._pool = pool
        self._host = host or HostTier(0)
        self._serials = count(1)
        self._entries: dict[bytes, _Entry] = {}
        self._by_place: dict[int, _Entry] = {}
        pool.on_evict = self._evict
        self._host.on_evict = lambda block: self._drop(pool.total + block)

    def __len__(self) -> int:
        """Blocks with known contents, used or not."""
        return len(self._by_place)

    def find(self, cursor: Cursor, ids: Sequence[int]) -> list[int]:
        """The places of the longest known prefix of ids, without its last token: that is always computed."""
        places: list[int] = []
        parent: int | Scope = cursor.scope
        limit = (len(ids) - 1) // self._pool.block_size
        cursor.read(ids, limit)
        for key, content in islice(cursor.prints, limit):
            entry = self._entries.get(key)
            if entry is None or not entry.holds(content, parent):
                break
            places.append(entry.place)
            parent = entry.serial
        return places

    def in_pool(self, places: Sequence[int]) -> list[int]:
        """Those that are blocks of the pool. The others take one of it each, to be read."""
        return [place for place in places if place < self._pool.total]

    def adopt(self, cursor: Cursor, places: Sequence[int]) -> list[int]:
        """Let the sequence of this cursor begin, for the first time or again, with what `find` just returned.

        Returns:
            A block of the pool for each place. Those that come from host memory hold it from the next step on.
        """
        entries = [self._by_place[place] for place in places]
        self._pool.share(self.in_pool(places))
        self._fetch([entry for entry in entries if entry.place >= self._pool.total])
        cursor.known = len(entries)
        cursor.parent = entries[-1].serial if entries else cursor.scope
        return [entry.place for entry in entries]

    def register(self, cursor: Cursor, ids: Sequence[int], blocks: Sequence[int], computed: int) -> None:
        """Make known the blocks of a sequence that became full, its first `computed` tokens being in them."""
        full = computed // self._pool.block_size
        if full == cursor.known:
            return
        cursor.read(ids, full)
        new, brief = slice(cursor.known, full), cursor.scope.group > 0
        for block, (key, content) in zip(blocks[new], cursor.prints[new], strict=True):
            cursor.parent = self._register(key, content, cursor.parent, block, brief=brief)
        cursor.known = full

    def forget(self, place: int) -> None:
        """Never find what is there again. Whoever uses it may go on."""
        if place in self._by_place:
            self._drop(place)
            self._free(place)

    def drop_before(self, date: float) -> None:
        """Give up, in both tiers, what nobody has used since this date."""
        self._pool.drop_before(date)  # What that moves to host memory is dropped there: what lies there is no younger.
        self._host.drop_before(date)

    def check_integrity(self) -> None:
        """Check that the two indexes agree with each other, and with the host tier.

        Raises:
            IntegrityError: they differ.
        """
        if {entry.place: entry for entry in self._entries.values()} != self._by_place:
            raise IntegrityError("the prefix cache knows a block by one index and not by the other")
        self._host.check_integrity([place - self._pool.total for place in self._by_place if place >= self._pool.total])

    def _register(self, key: bytes, content: bytes, parent: int | Scope, block: int, *, brief: bool) -> int:
        """Serial number of the entry that stands for this content from now on."""
        present = self._entries.get(key)
        if present is not None and present.holds(content, parent):
            if present.place >= self._pool.total:
                self._free(present.place)
                self._move(present, block)
            return present.serial  # Where another sequence computed the same, its block serves, and ours stays private.
        if present is not None:
            self.forget(present.place)  # A collision, or a tail whose head was evicted: the newer is of more use.
        entry = _Entry(next(self._serials), block, key, content, parent, brief)
        self._entries[key] = self._by_place[block] = entry
        self._pool.keep(block, brief=brief)
        return entry.serial

    def _fetch(self, entries: Sequence[_Entry]) -> None:
        """Move entries from host memory into the pool; what the pool evicts for them may take no place of theirs."""
        blocks = [entry.place - self._pool.total for entry in entries]
        self._host.reserve(blocks)
        for entry, block, target in zip(entries, blocks, self._pool.allocate(len(blocks)), strict=True):
            self._move(entry, target)
            self._host.fetch(block, target)

    def _evict(self, block: int, date: float) -> None:
        """The pool gives a block to others: what it holds moves to host memory, if there is any, and it is worth it."""
        place = None if self._by_place[block].brief else self._host.accept(block, date)
        if place is None:
            self._drop(block)
            return
        entry = self._by_place.pop(block)
        entry.place = self._pool.total + place
        self._by_place[entry.place] = entry

    def _move(self, entry: _Entry, block: int) -> None:
        """The contents of an entry are in a used block of the pool from now on."""
        del self._by_place[entry.place]
        entry.place = block
        self._by_place[block] = entry
        self._pool.keep(block)

    def _drop(self, place: int) -> None:
        del self._entries[self._by_place.pop(place).key]

    def _free(self, place: int) -> None:
        """The tier that a place belongs to need not keep it."""
        if place < self._pool.total:
            self._pool.forget(place)
        else:
            self._host.forget(place - self._pool.total)
