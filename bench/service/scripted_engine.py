"""headrace-engine with a scripted runner: the real service and core, and steps with known ids.

    HEADRACE_BENCH_STEPS=FILE python -m bench.service.scripted_engine [arguments of headrace-engine]

A step takes STEP seconds, or HEADRACE_BENCH_STEP_SECONDS, like a step of a device, and gives every sequence the same
id: `id_of` its number. The time and the number of ids of each step are written to FILE, one `STAMP` after the other.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Sequence
from functools import partial

from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.core.runner import BlockCopies, Progress, Runner, Sampled, SequenceStep
from headrace_engine.ipc.messages import RunnerSizes
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process import launch_process
from headrace_engine.process import main as core_main
from headrace_engine.service.program.main import main as service_main

from bench.common.environment import STEPS, given, step_seconds

PROGRAM = "bench.service.scripted_engine"
"""Name of this module, which Python runs from the root of the repository."""

STEP = 0.02
"""Seconds per step."""

STAMP = struct.Struct("<QQQ")
"""Number of a step, CLOCK_MONOTONIC in nanoseconds when the runner returned, and its number of ids."""

_FIRST_ID, CYCLE = 1_000, 40_000


def id_of(step: int) -> int:
    """Return the id of a step; repeats after 800 s."""
    return _FIRST_ID + step % CYCLE


class ScriptedRunner(Runner):
    """Waits instead of computing. A step is recorded at the beginning of the next one."""

    def __init__(self, plan: CorePlan) -> None:
        self._plan = plan
        self._stamps = open(given(STEPS), "ab", buffering=0)  # noqa: SIM115
        self._last = b""
        self._number = 0
        self._step = step_seconds(STEP)
        self._due = time.monotonic()

    @property
    def progress(self) -> int:
        """Return the number of steps: all of a step's time passes within `run`."""
        return self._number

    def load(self, progress: Progress) -> None:
        """Nothing."""

    def size(self) -> RunnerSizes:
        """Return the blocks for a full batch of the longest sequences."""
        plan = self._plan
        blocks = plan.max_batch * -(-plan.max_length // plan.block_size)
        return RunnerSizes(
            devices=("script",),
            dtype=ComputeDtype.FLOAT32,
            compute_unit=ComputeUnit.CPU,
            num_threads=1,
            max_length=plan.max_length,
            num_blocks=blocks,
            weight_bytes=0,
            workspace_bytes=0,
            kv_bytes=0,
        )

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Nothing."""

    def copy_blocks(self, copies: BlockCopies) -> None:
        """Nothing."""

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Return the id of this step for each sampled row."""
        self._stamps.write(self._last)
        drawn = [Sampled(id_of(self._number))] * sum(step.sampling is not None for step in steps)
        # A late step returns at once; later ones follow at the usual interval again.
        self._due = max(self._due + self._step, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._last = STAMP.pack(self._number, time.monotonic_ns(), len(drawn))
        self._number += 1
        return drawn

    def close(self) -> None:
        """Close the file."""
        self._stamps.close()


def main() -> int:
    """Run the service; with "core" and a number, a core on the socket of that number."""
    if sys.argv[1:2] == ["core"]:
        return core_main(int(sys.argv[2]), ScriptedRunner)
    program = (sys.executable, "-m", PROGRAM, "core")
    return service_main(launcher=partial(launch_process, program=program))


if __name__ == "__main__":
    sys.exit(main())
