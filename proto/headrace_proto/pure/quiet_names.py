"""Names that are not in use: of these, a bounded number is remembered."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class QuietNames(Generic[K]):
    """Names that are not in use, those first that have been quiet longest.

    Args:
        most: maximum names.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: OrderedDict[K, None] = OrderedDict()

    def used(self, name: K) -> None:
        """Note that a name is in use."""
        self._names.pop(name, None)

    def unused(self, name: K) -> K | None:
        """Note that a name is not in use any more. Return one to forget, if there are too many; else None."""
        self._names[name] = None
        self._names.move_to_end(name)
        return self._names.popitem(last=False)[0] if len(self._names) > self._most else None

    def clear(self) -> None:
        """Remove all."""
        self._names.clear()
