"""A core process whose steps wait at a gate: `python gated_core.py GATE FD`. It uses the real runner."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headrace_engine.core.runner import Runner, Sampled, SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process import main, make_runner

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.servers.gate import Gate


def make(gate: Gate, plan: CorePlan) -> Runner:
    """Return a runner that waits at the gate before each step."""
    runner = make_runner(plan)
    compute = runner.run

    def run(steps: Sequence[SequenceStep]) -> list[Sampled]:
        gate.pass_through()
        return compute(steps)

    runner.run = run  # type: ignore[method-assign]
    return runner


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[-1]), partial(make, Gate(Path(sys.argv[1])))))
