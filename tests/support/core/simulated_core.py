"""A core process with the simulated runner: `python simulated_core.py [MODE …] FD`.

Modes: "held" never leaves the step of an id of `held_runner`; "crash" dies in the step that computes id 666; "fail"
fails that step and all later ones; "chatter" sends bytes that are not a message.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process import main

from support.core.held_runner import HeldRunner
from support.core.simulated import SimulatedRunner


class Crashing(SimulatedRunner):
    """Ends the process in the step of id 666."""

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        if any(666 in step.token_ids for step in steps):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().run(steps)


class Failing(SimulatedRunner):
    """Fails the step of id 666 and all later ones."""

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        if any(666 in step.token_ids for step in steps):
            self.raises = lambda step: True
        return super().run(steps)


def make(plan: CorePlan) -> SimulatedRunner:
    kinds = {"held": HeldRunner, "crash": Crashing, "fail": Failing}
    return kinds.get(sys.argv[1], SimulatedRunner)(plan)


if __name__ == "__main__":
    if sys.argv[1] == "chatter":
        socket.socket(fileno=int(sys.argv[2])).sendall(b"\x02\x00\x00\x00no")
        signal.pause()
    sys.exit(main(int(sys.argv[2]), make, orphan_limit=0.2 if sys.argv[1] == "held" else 600))
