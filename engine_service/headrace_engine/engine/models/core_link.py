"""How the front half reaches a core: it is given a launcher, and knows not whether a process or a thread answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace_engine.commands import CoreCommand, CorePlan
from headrace_engine.messages import CoreMessage


class CoreLink(Protocol):
    """One core that was launched. Used on the event loop's thread."""

    def send(self, message: CoreCommand) -> None:
        """Hand over a command without blocking. What is sent to a core that is gone is dropped: `lost` tells of it."""

    def kill(self) -> str:
        """End the core now: it answers no more. `lost` tells when it is gone.

        A thread cannot be killed: it ends when what it is doing does, at the latest with its step, and nothing that it
        says meanwhile is received.

        Returns:
            What became of it, in words that follow "the core".
        """

    async def close(self) -> None:
        """Have the core free everything and end, and return when it has. A process that does not is killed.

        After this was called `lost` is not called any more; after it returned, `receive` is not either.
        """


class CoreLauncher(Protocol):
    """Starts a core. Called on a running event loop; each call starts another core."""

    def __call__(self, plan: CorePlan, receive: Callable[[CoreMessage], None], lost: Callable[[str], None]) -> CoreLink:
        """Start a core with a plan.

        Args:
            plan: what the core is to load; it answers with ModelProgress, then CoreReady or CoreFailed.
            receive: called with each message, in order, on this event loop's thread.
            lost: called once, on this event loop's thread, with the reason in words, when the core ended without
                having been asked to: after a CoreFailed too, and after the last message.
        """
