"""The reads of one reader."""

from __future__ import annotations


class Reads:
    """Surrounds each read of a reader; several may go on at once. One object for all, since nearly every token is one.

    Attributes:
        running: reads in progress.
        any: there was one, or is.
    """

    def __init__(self) -> None:
        self.running = 0
        self.any = False

    def __enter__(self) -> None:
        self.any = True
        self.running += 1

    def __exit__(self, *failure: object) -> None:
        self.running -= 1
