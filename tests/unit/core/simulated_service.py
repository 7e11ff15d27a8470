"""A front half that starts a core, gives it one sequence, and then does nothing: `python simulated_service.py MODE`.

It prints the core's number once the core is at rest and the sequence is under way to it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace_engine.messages import AddSequence, CoreMessage, StepOutput
from headrace_engine.process import launch_process
from unit.core.simulated import GREEDY, make_plan


async def serve() -> None:
    """Say when the core is at rest, and wait for the end."""
    rested = asyncio.Event()

    def receive(message: CoreMessage) -> None:
        if isinstance(message, StepOutput) and not rested.is_set():
            rested.set()
            link.send(AddSequence(1, (666,), GREEDY, 1))
            sys.stdout.write(f"{link.pid}\n")
            sys.stdout.flush()

    program = (sys.executable, str(Path(__file__).with_name("simulated_core.py")), sys.argv[1])
    link = launch_process(make_plan(), receive, print, program=program)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
