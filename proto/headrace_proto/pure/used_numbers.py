"""Numbers that may be used only once, such as those of a session's channels."""

from __future__ import annotations

_PAGE = 1024
_FULL = (1 << _PAGE) - 1

_MOST_PAGES = 256
"""Maximum pages with gaps that are kept. Beyond that the lowest is dropped, and all its numbers count as used."""


class UsedNumbers:
    """Set of the numbers from 1 on that were used, in bounded memory whatever numbers callers choose.

    A run from the first number on takes no memory; other numbers take a bit each, in pages of 1,024. Once there are
    more pages with gaps than are kept, the gaps of the lowest can no longer be used.
    """

    def __init__(self) -> None:
        self._full_pages = 0
        self._pages = {0: 1}  # 0 cannot be used.

    def use(self, number: int) -> bool:
        """Use a number. Return False if it was used before, is below 1, or is in a gap too far below the others."""
        page, bit = divmod(number, _PAGE)
        used = self._pages.get(page, 0)
        if page < self._full_pages or used >> bit & 1:
            return False
        self._pages[page] = used | 1 << bit
        if len(self._pages) > _MOST_PAGES:
            self._full_pages = min(self._pages)
            self._pages[self._full_pages] = _FULL
        while self._pages.get(self._full_pages) == _FULL:
            del self._pages[self._full_pages]
            self._full_pages += 1
        return True
