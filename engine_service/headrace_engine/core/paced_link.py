"""How often a core tells of tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from headrace_engine.commands import CoreCommand
from headrace_engine.core.link import Link
from headrace_engine.messages import CoreMessage, StepBegun, StepOutput


class PacedLink:
    """A `Link` on which words of quick steps wait for those of the next: one costs all it passes what a token does.

    Tokens alone wait, while the interval since the last word is not over. The first token of a sequence, the end, and
    whatever else a core says never wait, and take along what does. So tokens are told at the latest when a step ends
    that takes longer than the interval, and do not wait for one that other sequences join.

    Args:
        link: where words go.
        interval: seconds; 0: nothing waits.
        clock: seconds.
    """

    def __init__(self, link: Link, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._interval, self._clock = link, interval, clock
        self._held: list[CoreMessage] = []
        self._told = -math.inf
        self._running: set[int] = set()

    def receive(self, block: bool) -> list[CoreCommand]:
        """See `Link.receive`. Nothing waits for a step that nobody has asked for."""
        if block:
            self._tell()
        return self._link.receive(block)

    def send(self, *messages: CoreMessage) -> None:
        """See `Link.send`."""
        self._held += messages
        patient = [self._may_wait(message) for message in messages]
        if not all(patient) or self._clock() >= self._told + self._interval:
            self._tell()

    def _tell(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._link.send(*held)
            self._told = self._clock()

    def _may_wait(self, message: CoreMessage) -> bool:
        """Whether there is nothing in it but further tokens of the sequences that the step before it had."""
        if isinstance(message, StepBegun) and not self._running.issuperset(message.keys):
            self._running = set()  # It may take long, and the step before it may be told only now.
        if not isinstance(message, StepOutput):
            return False
        further = bool(message.keys) and self._running.issuperset(message.keys)
        self._running = set(message.keys)
        return further and not (message.ended or message.scheduled or message.preempted or message.prompts)
