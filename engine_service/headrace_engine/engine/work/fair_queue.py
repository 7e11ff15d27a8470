"""What waits for a turn, by whose it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What stands in a line.

    Attributes:
        owner: whose it is.
        size: how large it is, in any unit.
    """

    owner: str
    size: int


T = TypeVar("T", bound=Waiting)


class FairLine(Generic[T]):
    """Gives owners their turns one after the other, and each owner's entries in the order in which they came.

    An owner may hold half of the line, or as much as is left to others: whoever comes next finds a place, however
    much one of them sends.

    Args:
        max_count: entries that may wait.
        max_size: what they may measure together; one that is larger by itself may still wait alone.
    """

    def __init__(self, max_count: int, max_size: int) -> None:
        self.max_count, self._max_size = max_count, max_size
        self._by_owner: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._count = self._size = 0

    def __len__(self) -> int:
        return self._count

    def why_not(self, entry: T) -> str:
        """Why an entry may not wait, beside what its owner has in the line; "": it may."""
        count, size = len(self._by_owner.get(entry.owner, ())), self._sizes.get(entry.owner, 0)
        if count >= self.max_count - self._count:
            return f"{self._count} wait already, {count} of them of this owner; allowed: {self.max_count} of all"
        if self._size and size + entry.size > self._max_size - self._size:
            text = f"what waits already measures {self._size}, {size} of it of this owner"
            return f"{text}, and this one {entry.size}; allowed: {self._max_size} of all"
        return ""

    def add(self, entry: T) -> None:
        """Let an entry wait, as its owner's last."""
        self._by_owner.setdefault(entry.owner, OrderedDict())[entry] = None
        self._note(entry, 1)

    def discard(self, entry: T) -> bool:
        """Let an entry wait no more; False: it did not."""
        if entry not in self._by_owner.get(entry.owner, ()):
            return False
        self._remove(entry)
        return True

    def take(self, may: Callable[[str], bool]) -> T | None:
        """The first entry of the first owner who may have a turn; that owner is the last one from now on."""
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
