"""Reads many queues at once, each in a thread of its own, and joins their elements to whole answers."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from headrace import HeadraceError, ResultQueue
from headrace.types import GeneratedElements

from support.clocks.waiting import wait_until
from support.servers.gate import Gate


@dataclass(frozen=True)
class Answer:
    """Ids and text of a sequence, joined from elements."""

    ids: tuple[int, ...]
    text: str

    @property
    def checksum(self) -> int:
        """Return the CRC-32 of the ids as little-endian 32-bit numbers."""
        return crc32(b"".join(token_id.to_bytes(4, "little") for token_id in self.ids))


def joined(elements: Iterable[GeneratedElements]) -> Answer:
    """Join elements to one answer; assert that they are consecutive from 0 on, without gaps or repetitions."""
    ids: list[int] = []
    text = ""
    for element in elements:
        assert element.position == len(ids), f"an element at {element.position} after {len(ids)} tokens"
        ids += element.ids_from_generate
        text += element.text
    return Answer(tuple(ids), text)


class Reading:
    """A thread that reads a queue to its end, as users do.

    Attributes:
        queue: queue that it reads.
    """

    def __init__(self, queue: ResultQueue) -> None:
        self.queue = queue
        self._elements: list[GeneratedElements] = []
        self._error: HeadraceError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def length(self) -> int:
        """Number of tokens read so far."""
        return sum(len(element.ids_from_generate) for element in self._elements)

    @property
    def so_far(self) -> Answer:
        """Answer read so far."""
        return joined(list(self._elements))

    def error(self, seconds: float = 120.0) -> HeadraceError | None:
        """Exception that ended the reading; None: no error."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"still reading after {self.length} tokens"
        return self._error

    def whole(self, seconds: float = 120.0) -> Answer:
        """Return the whole answer, once it has ended. Raises the exception of the reading."""
        if (error := self.error(seconds)) is not None:
            raise error
        return self.so_far

    def _read(self) -> None:
        try:
            for element in self.queue:
                self._elements.append(element)
        except HeadraceError as error:
            self._error = error


def step_until(gate: Gate, readings: list[Reading], tokens: int) -> None:
    """Let engines at a gate step until each queue has so many tokens, also those that wait for their grammar."""

    def reached() -> bool:
        gate.let(2)
        return min(reading.length for reading in readings) >= tokens

    wait_until(reached, "some reader hears nothing")
