"""Which blocks hold the keys and values of which tokens, so that no prefix is computed twice."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, islice

from headrace_engine.core.block_pool import BlockPool, BooksError


@dataclass(frozen=True, slots=True)
class Scope:
    """What decides about keys and values besides the ids. Blocks are shared inside one scope only.

    Attributes:
        revision: the model's weights, by a name that changes with them.
        kv_mode: how keys and values are stored.
        adapter: name of the LoRA adapter; "" = none.
        media_digest: digest of the media behind placeholder ids; "" = none.
        salt: chosen by the caller, to keep requests apart.
        group: sequences that share with each other alone; 0 = with all.
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


@dataclass(frozen=True, slots=True)
class _Entry:
    """One block with known contents. Serial numbers tell apart what equal keys might confuse."""

    serial: int
    block: int
    key: bytes
    content: bytes
    parent: int | Scope

    def holds(self, content: bytes, parent: int | Scope) -> bool:
        return self.content == content and self.parent == parent


class PrefixCache:
    """Finds blocks by the tokens they hold. There is one entry a block at most, so the pool bounds its size.

    A hit is never taken on a key's word: ids and parent are compared too. Blocks are only shared when full, and full
    blocks are never written again.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._serials = count(1)
        self._entries: dict[bytes, _Entry] = {}
        self._by_block: dict[int, _Entry] = {}
        pool.on_evict = self._drop

    def __len__(self) -> int:
        """Blocks with known contents, used or not."""
        return len(self._by_block)

    def find(self, cursor: Cursor, ids: Sequence[int]) -> list[int]:
        """The blocks that hold the longest known prefix of ids, without its last token: that is always computed."""
        blocks: list[int] = []
        parent: int | Scope = cursor.scope
        limit = (len(ids) - 1) // self._pool.block_size
        cursor.read(ids, limit)
        for key, content in islice(cursor.prints, limit):
            entry = self._entries.get(key)
            if entry is None or not entry.holds(content, parent):
                break
            blocks.append(entry.block)
            parent = entry.serial
        return blocks

    def adopt(self, cursor: Cursor, blocks: Sequence[int]) -> None:
        """Let the sequence of this cursor begin, for the first time or again, with blocks that `find` just returned."""
        self._pool.share(blocks)
        cursor.known = len(blocks)
        cursor.parent = self._by_block[blocks[-1]].serial if blocks else cursor.scope

    def register(self, cursor: Cursor, ids: Sequence[int], blocks: Sequence[int], computed: int) -> None:
        """Make known the blocks of a sequence that became full, its first `computed` tokens being in them."""
        full = computed // self._pool.block_size
        if full == cursor.known:
            return
        cursor.read(ids, full)
        new = slice(cursor.known, full)
        for block, (key, content) in zip(blocks[new], cursor.prints[new], strict=True):
            cursor.parent = self._register(key, content, cursor.parent, block)
        cursor.known = full

    def forget(self, block: int) -> None:
        """Never find this block again. Whoever uses it may go on."""
        if block in self._by_block:
            self._drop(block)
            self._pool.forget(block)

    def check_books(self) -> None:
        """Compare the two indexes.

        Raises:
            BooksError: they differ.
        """
        if {entry.block: entry for entry in self._entries.values()} != self._by_block:
            raise BooksError("the prefix cache knows a block by one index and not by the other")

    def _register(self, key: bytes, content: bytes, parent: int | Scope, block: int) -> int:
        """Serial number of the entry that stands for this content from now on."""
        present = self._entries.get(key)
        if present is not None and present.holds(content, parent):
            return present.serial  # Another sequence computed the same; its block serves, ours stays private.
        if present is not None:
            self.forget(present.block)  # A collision, or a tail whose head was evicted: the newer is of more use.
        entry = _Entry(next(self._serials), block, key, content, parent)
        self._entries[key] = self._by_block[block] = entry
        self._pool.keep(block)
        return entry.serial

    def _drop(self, block: int) -> None:
        del self._entries[self._by_block.pop(block).key]
