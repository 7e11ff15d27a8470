"""The core's end of its connection to the front half, independent of the transport."""

from __future__ import annotations

from typing import Protocol

from headrace_engine.ipc.commands import CoreCommand
from headrace_engine.ipc.messages import CoreMessage


class LinkClosed(Exception):
    """The front half is gone: nothing will read this core's results."""


class Link(Protocol):
    """Receives commands and sends messages, in order. Used from the core's only thread."""

    def receive(self, block: bool) -> list[CoreCommand]:
        """Return all pending commands, oldest first; with `block`, wait for at least one.

        Raises:
            LinkClosed: the other end is closed, and all commands sent before were returned.
        """

    def send(self, *messages: CoreMessage) -> None:
        """Send messages together.

        Raises:
            LinkClosed: the other end is closed.
        """


class PingedLink(Link, Protocol):
    """A link whose front half pings to check that the core makes progress."""

    def answer(self, progress: int) -> None:
        """Answer pending pings while the core is inside a step. Called on a thread of its own.

        Args:
            progress: the runner's progress so far.

        Raises:
            LinkClosed: the front half has cut this core off.
        """

    def cut(self) -> None:
        """Have `receive` raise LinkClosed from now on. Callable from any thread."""
