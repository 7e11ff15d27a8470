"""A clock that a test sets."""

from __future__ import annotations


class Now:
    """A clock that the test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds
