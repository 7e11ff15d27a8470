"""A front half that starts a core, sends it one sequence, and then does nothing: `python simulated_service.py MODE`.

Prints the core's process id once the core has begun the sequence.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.messages import CoreMessage, StepBegun
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.process import launch_process

from support.core.simulated import GREEDY, make_plan


async def serve() -> None:
    """Send the core its sequence when it is idle, print when it begins, and wait for the end."""
    rested = asyncio.Event()

    def receive(message: CoreMessage) -> None:
        if isinstance(message, StepOutput) and not rested.is_set():
            rested.set()
            link.send(AddSequence(1, (666,), GREEDY, 1))
        elif isinstance(message, StepBegun):
            sys.stdout.write(f"{link.pid}\n")
            sys.stdout.flush()

    program = (sys.executable, str(Path(__file__).with_name("simulated_core.py")), sys.argv[1])
    link = launch_process(make_plan(), receive, print, program=program)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
