"""Numbers that may be used once, such as those of a session's channels."""

from __future__ import annotations

_PAGE = 1024
_FULL = (1 << _PAGE) - 1


class UsedNumbers:
    """The numbers from 1 on that were used. Those in a row from the first one take no memory, others a bit each."""

    def __init__(self) -> None:
        self._full_pages = 0
        self._pages = {0: 1}  # 0 is none of them.

    def use(self, number: int) -> bool:
        """Use a number; False: it was used before, or is below 1."""
        page, bit = divmod(number, _PAGE)
        used = self._pages.get(page, 0)
        if page < self._full_pages or used >> bit & 1:
            return False
        self._pages[page] = used | 1 << bit
        while self._pages.get(self._full_pages) == _FULL:
            del self._pages[self._full_pages]
            self._full_pages += 1
        return True
