"""The interface between the front half and a core, which may be a process or a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace_engine.ipc.commands import CoreCommand
from headrace_engine.ipc.messages import CoreMessage
from headrace_engine.ipc.plans import CorePlan


class CoreLink(Protocol):
    """A launched core. Used on the event loop's thread alone."""

    def send(self, message: CoreCommand) -> None:
        """Send a command without blocking. Commands to a core that is gone are dropped: `lost` reports that."""

    def kill(self) -> str:
        """End the core now; none of its messages is received from here on. `lost` is called when it is gone.

        A thread cannot be killed: it ends with its current operation, at the latest with its step.

        Returns:
            What became of it, as a phrase that follows "the core".
        """

    async def close(self) -> None:
        """Have the core free everything and end, and wait for that. A process that does not end is killed.

        `lost` is not called after this call, `receive` not after its return.
        """


class CoreLauncher(Protocol):
    """Starts a core. Called on a running event loop; each call starts another core."""

    def __call__(self, plan: CorePlan, receive: Callable[[CoreMessage], None], lost: Callable[[str], None]) -> CoreLink:
        """Start a core with a plan.

        Args:
            plan: the model to load; the core answers with ModelProgress, then CoreReady or CoreFailed.
            receive: called with each message, in order, on this event loop's thread.
            lost: called once, on this event loop's thread, with the reason, when the core ended unexpectedly:
                after the last message, also after a CoreFailed.
        """
