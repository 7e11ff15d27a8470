"""The cuda backend on a CPU, through the simulator of csrc: for tests of everything but speed."""

from collections.abc import Mapping

from headrace_engine.backends.cuda.device import SimDevice
from headrace_engine.backends.cuda.runner import CudaRunner
from headrace_engine.backends.processors import NO_PROCESSES, Process
from headrace_engine.commands import CorePlan

__all__ = ["make_runner"]


def make_runner(plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> CudaRunner:
    """The runner for a plan whose backend is "sim". Its library, core_sim, is built for tests, and is in no wheel."""
    return CudaRunner(plan, SimDevice, processes)
