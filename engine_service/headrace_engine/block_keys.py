"""Keys of blocks in the prefix cache: what a block's keys and values depend on, as 16 bytes; and which come and go.

The core keeps its prefix cache by them, and the front half sends them to gateways.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.step_output import CacheChange

KEY_BYTES = 16
"""Bytes of a key."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Everything that keys and values depend on besides the ids. Blocks are shared only within one scope.

    Attributes:
        revision: name of the model's weights, which changes with them.
        kv_mode: storage of keys and values.
        adapter: digest of the content of the LoRA adapter; "" = none.
        media_digest: digest of the media behind placeholder ids; "" = none.
        salt: chosen by the caller, to separate requests.
        group: number of a group of sequences that share only with each other; 0 = no group. Their blocks are useless
            once the group has ended, so they are evicted first and never moved to host memory.
    """

    revision: str = ""
    kv_mode: str = ""
    adapter: str = ""
    media_digest: str = ""
    salt: str = ""
    group: int = 0

    @classmethod
    def of(cls, plan: CorePlan) -> Scope:
        """Return the scope of a model."""
        return cls(revision=plan.path, kv_mode=plan.kv_cache_mode)

    def narrowed(self, request: AddSequence) -> Scope:
        """Return the scope of a sequence of the model."""
        return replace(self, salt=request.cache_salt, adapter=request.adapter_digest)

    @property
    def key(self) -> bytes:
        """Parent key of every first block in this scope."""
        fields = (self.revision, self.kv_mode, self.adapter, self.media_digest, self.salt, self.group)
        return block_key(b"", repr(fields).encode())


def block_key(parent: bytes, content: bytes) -> bytes:
    """Return the 128-bit key of a block, derived from the key of the block before it and its own ids."""
    return blake2b(parent + content, digest_size=KEY_BYTES).digest()


def block_content(ids: Sequence[int], number: int, block_size: int) -> bytes:
    """Return the packed ids of a block."""
    return array("I", ids[number * block_size : (number + 1) * block_size]).tobytes()


def block_keys(scope: Scope, ids: Sequence[int], block_size: int, most: int) -> Iterator[bytes]:
    """Yield the keys of the full blocks of ids, at most so many."""
    key = scope.key
    for number in range(min(len(ids) // block_size, most)):
        key = block_key(key, block_content(ids, number, block_size))
        yield key


class CacheChanges:
    """Collects what comes and goes until it is taken, once a step, in as few records as its order allows."""

    def __init__(self) -> None:
        self._changes: list[CacheChange] = []

    def stored(self, key: bytes, parent: bytes, *, host: bool) -> None:
        """Note a block that came. `parent`: key of the block before; empty: it begins a prompt."""
        last = self._last(stored=True, host=host)
        if last is not None and last.keys[-1] == parent:
            last.keys.append(key)
        else:
            self._changes.append(CacheChange(True, host, [key], parent))

    def removed(self, key: bytes, *, host: bool) -> None:
        """Note a block that left."""
        last = self._last(stored=False, host=host)
        if last is not None:
            last.keys.append(key)
        else:
            self._changes.append(CacheChange(False, host, [key]))

    def take(self) -> list[CacheChange]:
        """Return the changes since the last call."""
        taken, self._changes = self._changes, []
        return taken

    def _last(self, *, stored: bool, host: bool) -> CacheChange | None:
        """Return the latest change, if it is of this kind."""
        last = self._changes[-1] if self._changes else None
        return last if last is not None and (last.stored, last.host) == (stored, host) else None
