"""Compiled grammars that are in use, or kept for the next request with the same, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from weakref import WeakValueDictionary

from headrace_engine.guided.guide import Compiled


class KeptGrammars:
    """By their texts. Safe to use from several threads.

    What guides follow lives as long as they do; beside it, what was used lately is kept, and the least lately used is
    dropped where all together exceed the bytes.

    Args:
        max_bytes: of all of them, as `Compiled.size` estimates it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._living: WeakValueDictionary[str, Compiled] = WeakValueDictionary()
        self._kept: OrderedDict[str, Compiled] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes of all that live."""
        return sum(compiled.size for compiled in list(self._living.values()))

    def find(self, grammar: str) -> Compiled | None:
        """Return the one that is there, if more guides may begin with it."""
        with self._lock:
            found = self._living.get(grammar)
            if found is None:
                return None
            if not found.sound or found.is_worn:
                self._kept.pop(grammar, None)
                return None
            self._kept[grammar] = found
            self._kept.move_to_end(grammar)
            return found

    def add(self, grammar: str, compiled: Compiled) -> None:
        """Keep one that was made just now."""
        with self._lock:
            self._living[grammar] = compiled
            self._kept[grammar] = compiled
            self._drop_for(0)

    def has_capacity(self, grammar: str, size: int) -> bool:
        """Whether one of so many bytes may be made, once what is not in use has made way; alone, it always may."""
        with self._lock:
            if grammar in self._living:
                return True
            self._drop_for(size)
            return not self._living or self.size + size <= self._max_bytes

    def _drop_for(self, size: int) -> None:
        while self._kept and self.size + size > self._max_bytes:
            self._kept.popitem(last=False)
