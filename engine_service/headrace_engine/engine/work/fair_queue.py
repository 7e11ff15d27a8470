"""A queue that serves its owners in turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Entry(Protocol):
    """An entry of a queue.

    Attributes:
        owner: the owner it belongs to.
        size: its size, in any unit.
    """

    owner: str
    size: int


T = TypeVar("T", bound=Entry)


class FairQueue(Generic[T]):
    """Serves owners round robin, and each owner's entries in order of arrival.

    An owner may occupy at most as much as is still free afterwards, so no owner can fill the queue alone.

    Args:
        max_count: maximum number of entries.
        max_size: maximum total size; a larger entry may still wait alone.
    """

    def __init__(self, max_count: int, max_size: int) -> None:
        self.max_count, self._max_size = max_count, max_size
        self._by_owner: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._count = self._size = 0

    def __len__(self) -> int:
        return self._count

    def refusal(self, entry: T) -> str:
        """Return why an entry may not be added, given what its owner has in the queue; "": it may."""
        count, size = len(self._by_owner.get(entry.owner, ())), self._sizes.get(entry.owner, 0)
        if count >= self.max_count - self._count:
            return f"{self._count} are queued already, {count} of this owner; allowed: {self.max_count} in all"
        if self._size and size + entry.size > self._max_size - self._size:
            text = f"the queued work has size {self._size}, {size} of this owner"
            return f"{text}, and this one {entry.size}; allowed: {self._max_size} in all"
        return ""

    def add(self, entry: T) -> None:
        """Add an entry, as its owner's last."""
        self._by_owner.setdefault(entry.owner, OrderedDict())[entry] = None
        self._note(entry, 1)

    def discard(self, entry: T) -> bool:
        """Remove an entry; False: it was not queued."""
        if entry not in self._by_owner.get(entry.owner, ()):
            return False
        self._remove(entry)
        return True

    def take(self, may: Callable[[str], bool]) -> T | None:
        """Remove and return the first entry of the next owner that `may` have a turn; move that owner to the back."""
        owner = next(filter(may, self._by_owner), None)
        if owner is None:
            return None
        entry = next(iter(self._by_owner[owner]))
        self._by_owner.move_to_end(owner)
        self._remove(entry)
        return entry

    def _remove(self, entry: T) -> None:
        own = self._by_owner[entry.owner]
        del own[entry]
        self._note(entry, -1)
        if not own:
            del self._by_owner[entry.owner], self._sizes[entry.owner]

    def _note(self, entry: T, sign: int) -> None:
        self._count += sign
        self._size += sign * entry.size
        self._sizes[entry.owner] = self._sizes.get(entry.owner, 0) + sign * entry.size
