"""The engine service on a simulated card that may be lost: `python fallible_engine.py GATE CARD ARGUMENT...`.

Its steps wait at a gate. Cores find a card as long as the file CARD is there. They are
`python fallible_engine.py GATE CARD core FD`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headrace_engine.core.in_flight import InFlightStep
from headrace_engine.core.runner import Runner, SequenceStep
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process import launch_process
from headrace_engine.process import main as core_main
from headrace_engine.service.program.main import main as service_main

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.servers.gate import Gate


def make(gate: Gate, card: Path, plan: CorePlan) -> Runner:
    """Return a runner on the card, which waits at the gate before each step."""
    from headrace_engine.backends.cuda.runner import CudaRunner

    from support.sim.device import SimDevice

    def opened() -> SimDevice:
        if not card.exists():
            raise InvalidArgument.field("config.compute_unit", "= CUDA, but the NVIDIA driver shows no device")
        return SimDevice()

    runner = CudaRunner(plan, opened)
    compute = runner.launch

    def launch(steps: Sequence[SequenceStep]) -> InFlightStep:
        gate.pass_through()
        return compute(steps)

    runner.launch = launch  # type: ignore[method-assign]
    return runner


def main(gate: str, card: str, *arguments: str) -> int:
    """Run the service, or one of its cores."""
    if arguments[:1] == ("core",):
        return core_main(int(arguments[1]), partial(make, Gate(Path(gate)), Path(card)))
    program = (sys.executable, __file__, gate, card, "core")
    return service_main(["--backend", "cuda", *arguments], launcher=partial(launch_process, program=program))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
