"""A core process that one prompt brings down: `python poisoned_core.py FD`. It computes with the real runner."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from headrace_engine.core.runner import Runner, Sampled, SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process import main, make_runner

POISON = 7
"""The id that such a prompt begins with."""


def make(plan: CorePlan) -> Runner:
    """A runner that takes the process down with it when it meets the poison."""
    runner = make_runner(plan)
    compute = runner.run

    def run(steps: Sequence[SequenceStep]) -> list[Sampled]:
        if any(step.start == 0 and step.token_ids[0] == POISON for step in steps):
            os.kill(os.getpid(), signal.SIGSEGV)
        return compute(steps)

    runner.run = run  # type: ignore[method-assign]
    return runner


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[-1]), make))
