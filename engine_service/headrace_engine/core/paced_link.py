"""Limits how often a core sends tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from headrace_engine.core.link import Link
from headrace_engine.ipc.commands import CoreCommand
from headrace_engine.ipc.messages import CoreMessage, StepBegun
from headrace_engine.ipc.step_output import StepOutput


class PacedLink:
    """A `Link` that coalesces the outputs of fast steps: sending a message costs as much as handling a token.

    Only further tokens are held back, while less than the interval has passed since the last send. A sequence's first
    token, its end and all other messages are sent at once, with everything held back before them. Tokens are thus
    delayed until the end of the first step after the interval, and never by a step that other sequences join.

    Args:
        link: the link to send on.
        interval: minimum seconds between two sends of tokens; 0: send at once.
        clock: seconds.
    """

    def __init__(self, link: Link, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._interval, self._clock = link, interval, clock
        self._held: list[CoreMessage] = []
        self._sent_at = -math.inf
        self._running: set[int] = set()

    def receive(self, block: bool) -> list[CoreCommand]:
        """See `Link.receive`. Sends what is held back before blocking."""
        if block:
            self._flush()
        return self._link.receive(block)

    def send(self, *messages: CoreMessage) -> None:
        """See `Link.send`."""
        self._held += messages
        patient = [self._may_wait(message) for message in messages]
        if not all(patient) or self._clock() >= self._sent_at + self._interval:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._link.send(*held)
            self._sent_at = self._clock()

    def _may_wait(self, message: CoreMessage) -> bool:
        """Return True if a message holds nothing but further tokens of the previous step's sequences."""
        if isinstance(message, StepBegun) and not self._running.issuperset(message.keys):
            self._running = set()  # The new step may take long: send the output of the step before it at once.
        if not isinstance(message, StepOutput):
            return False
        further = bool(message.keys) and self._running.issuperset(message.keys)
        self._running = set(message.keys)
        return further and not (message.ended or message.scheduled or message.preempted or message.prompts)
