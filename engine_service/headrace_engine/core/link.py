"""The core's end of the wire to the front half, whatever carries it."""

from __future__ import annotations

from typing import Protocol

from headrace_engine.commands import CoreCommand
from headrace_engine.messages import CoreMessage


class LinkClosed(Exception):
    """The front half is gone: nobody will read what this core computes."""


class Link(Protocol):
    """Commands in, messages out, in order. Used from the core's one thread."""

    def receive(self, block: bool) -> list[CoreCommand]:
        """All commands that wait, oldest first; with block, waits until there is at least one.

        Raises:
            LinkClosed: the other end is closed and every command before that was returned.
        """

    def send(self, *messages: CoreMessage) -> None:
        """Hand over messages, all at once.

        Raises:
            LinkClosed: the other end is closed.
        """


class PingedLink(Link, Protocol):
    """A link whose front half asks now and then whether the core gets on."""

    def answer(self, progress: int) -> None:
        """Answer the pings that wait, while the core is busy with a step. Called on another thread than all else.

        Args:
            progress: what the runner has done so far.

        Raises:
            LinkClosed: the front half wants nothing of this core any more.
        """
