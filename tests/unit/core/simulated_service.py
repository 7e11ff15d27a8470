"""A front half that starts a core and then does nothing: `python simulated_service.py`. It prints the core's number."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace_engine.messages import CoreMessage, CoreReady
from headrace_engine.process import launch_process
from unit.core.simulated import make_plan


async def serve() -> None:
    """Say when the core is ready, and wait for the end."""

    def receive(message: CoreMessage) -> None:
        if isinstance(message, CoreReady):
            sys.stdout.write(f"{link.pid}\n")
            sys.stdout.flush()

    program = (sys.executable, str(Path(__file__).with_name("simulated_core.py")), "plain")
    link = launch_process(make_plan(), receive, print, program=program)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
