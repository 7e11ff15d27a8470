"""Cache of compiled grammars, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from weakref import WeakValueDictionary

from headrace_engine.guided.compiled import Compiled


class KeptGrammars:
    """Compiled grammars by their texts. Thread-safe.

    A grammar lives as long as any guide uses it. Recently used ones are kept beyond that; the least recently used are
    dropped when all grammars together exceed the limit.

    Args:
        max_bytes: limit for all grammars together, as `Compiled.size` estimates them.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._living: WeakValueDictionary[str, Compiled] = WeakValueDictionary()
        self._kept: OrderedDict[str, Compiled] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes of all grammars in memory."""
        return sum(compiled.size for compiled in list(self._living.values()))

    def find(self, grammar: str) -> Compiled | None:
        """Return the compiled grammar, if there is one that more guides can start with."""
        with self._lock:
            found = self._living.get(grammar)
            if found is None:
                return None
            if not found.sound or found.has_outgrown:
                self._kept.pop(grammar, None)
                return None
            self._kept[grammar] = found
            self._kept.move_to_end(grammar)
            return found

    def add(self, grammar: str, compiled: Compiled) -> None:
        """Add a newly compiled grammar."""
        with self._lock:
            self._living[grammar] = compiled
            self._kept[grammar] = compiled
            self._drop_for(0)

    def has_capacity(self, grammar: str, size: int) -> bool:
        """Drop unused grammars and return True if one of this size may be compiled; a single one always may."""
        with self._lock:
            if grammar in self._living:
                return True
            self._drop_for(size)
            return not self._living or self.size + size <= self._max_bytes

    def _drop_for(self, size: int) -> None:
        while self._kept and self.size + size > self._max_bytes:
            self._kept.popitem(last=False)
