"""Counting the reads of a reader."""

from __future__ import annotations


class Reads:
    """A context manager for reads of a reader, several at once. All share one object, as there are very many reads.

    Attributes:
        running: number of reads in progress.
        any: True from the first read on.
    """

    def __init__(self) -> None:
        self.running = 0
        self.any = False

    def __enter__(self) -> None:
        self.any = True
        self.running += 1

    def __exit__(self, *failure: object) -> None:
        self.running -= 1
