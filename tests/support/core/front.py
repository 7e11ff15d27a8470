"""The other end of a core: a front half that records messages, and launchers of simulated cores."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace_engine.engine.cores.core_link import CoreLauncher, CoreLink
from headrace_engine.ipc.messages import CoreMessage, CoreReady, Pong
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.process import launch_process, launch_thread
from headrace_engine.process.parent import ProcessLink

from support.clocks.waiting import ends
from support.core.simulated import SimulatedRunner, make_plan

CORE = Path(__file__).with_name("simulated_core.py")


class Front:
    """A front half that records a core's messages, and lets a test wait for them."""

    def __init__(self) -> None:
        self.messages: list[CoreMessage] = []
        self.lost: list[str] = []
        self._news = asyncio.Event()
        self.links: list[CoreLink] = []

    def launch(self, launcher: CoreLauncher, plan: CorePlan | None = None) -> CoreLink:
        self.links.append(launcher(plan or make_plan(), self._receive, self._lose))
        return self.links[-1]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition on the messages holds."""
        async with ends(f"{self.messages[-3:]} are the last messages, and {self.lost}"):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def ready(self) -> None:
        await self.until(lambda: any(isinstance(message, CoreReady) for message in self.messages))

    async def pong(self, number: int) -> None:
        """Wait until the core answers a ping, between two steps or inside one."""
        await self.until(lambda: number in [m.number for m in self.messages if isinstance(m, Pong)])

    def tokens(self, key: int) -> list[int]:
        outputs = [message for message in self.messages if isinstance(message, StepOutput)]
        pairs = (pair for output in outputs for pair in zip(output.keys, output.token_ids, strict=True))
        return [token for owner, token in pairs if owner == key]

    def _receive(self, message: CoreMessage) -> None:
        self.messages.append(message)
        self._news.set()

    def _lose(self, reason: str) -> None:
        self.lost.append(reason)
        self._news.set()


def in_process(mode: str = "plain", grace: float = 30.0) -> Callable[..., ProcessLink]:
    """Return a launcher of the simulated core in a child process."""

    def launch(plan: CorePlan, receive: Callable[[CoreMessage], None], lost: Callable[[str], None]) -> ProcessLink:
        program = (sys.executable, str(CORE), mode)
        return launch_process(plan, receive, lost, program=program, grace=grace, close_grace=grace)

    return launch


def in_thread(plan: CorePlan, receive: Callable[[CoreMessage], None], lost: Callable[[str], None]) -> CoreLink:
    """Return a launcher of the simulated core in a thread."""
    return launch_thread(plan, receive, lost, make=SimulatedRunner)
