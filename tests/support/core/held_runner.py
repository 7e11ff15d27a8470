"""A runner that is held inside a step."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace_engine.core.runner import Sampled, SequenceStep

from support.core.simulated import SimulatedRunner

LONG, STUCK = 667, 666
"""Ids that it computes only once it is released: in the step of the first it makes progress until then, like a large
product; in that of the other it does not, like a kernel that hangs."""


class HeldRunner(SimulatedRunner):
    """Attributes:
    go: set it to release the runner.
    """

    go = threading.Event()
    done = 0

    @property
    def progress(self) -> int:
        return self.done

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        ids = {token_id for step in steps for token_id in step.token_ids}
        if LONG in ids:
            while not self.go.wait(0.001):
                self.done += 1
        if STUCK in ids:
            self.go.wait()
        return super().run(steps)
