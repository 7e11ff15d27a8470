"""The simulated device, and runners of the cuda backend on it, for tests of everything but speed."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from headrace_engine.backends.cuda.device.device import Graph, Mark
from headrace_engine.backends.cuda.device.flash import VaryingAttention, attention_by_sequence
from headrace_engine.backends.cuda.runner import CudaRunner
from headrace_engine.backends.processors import NO_PROCESSES, Process
from headrace_engine.backends.torch.sampling.processing import Kernel
from headrace_engine.ipc.plans import CorePlan, ProcessorFile
from headrace_engine.native import load
from torch import Tensor

from support.sim.kernels import simulated_kernel
from support.sim.paged import SimPagedMaker
from support.sim.recording import Recording

Result = TypeVar("Result")

_SIM_MEMORY = 2**28


def make_runner(plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> CudaRunner:
    """Return the runner of the cuda backend for a plan, on the simulated device."""
    return CudaRunner(plan, SimDevice, processes)


class SimDevice:
    """The CUDA path on a CPU: csrc's kernels in the simulator, tensors in the host's memory, graphs as recordings."""

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.name = "sim"
        self.native = load("sim")
        self.multiprocessors = 8
        self.capability = (9, 0)
        self._recording: Recording | None = None
        self._beside: deque[_Beside] = deque()

    def launch(self, op: str, args: ctypes.Structure) -> None:
        """See Device. Blocks until it is done."""
        self.native.launch(op, args, 0)
        if self._recording is not None:
            kept = type(args).from_buffer_copy(args)
            self._recording.add(lambda: self.native.launch(op, kept, 0))

    def kernel(self, source: str, file: ProcessorFile) -> Kernel:
        """See Device."""
        return simulated_kernel(source, file)

    def attention(self) -> VaryingAttention:
        """See Device."""
        return attention_by_sequence

    def paged_attention(self) -> SimPagedMaker:
        """See Device. Attention of torch over the same pages."""
        return SimPagedMaker()

    def pinned(self, nbytes: int) -> Tensor:
        """See Device."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    def mark(self) -> Mark:
        """See Device."""
        return _Passed()

    def beside(self, work: Callable[[], object]) -> Mark:
        """See Device. The work is put off until somebody waits for it, so that it shows where nobody does."""
        self._beside.append(_Beside(self._beside, work))
        return self._beside[-1]

    def capture(self, work: Callable[[], Result]) -> tuple[Graph, Result]:
        """See Device."""
        recording = self._recording = Recording()
        try:
            with torch.inference_mode(), recording.torch_operators():
                return recording, work()
        finally:
            self._recording = None

    def memory(self) -> tuple[int, int]:
        """See Device. Reports little memory, so that pools sized by it are small."""
        return _SIM_MEMORY, _SIM_MEMORY

    def taken(self, work: Callable[[], object]) -> int:
        """See Device. Always 0: the host's memory is not counted."""
        work()
        return 0


class _Passed:
    passed = True

    def wait(self) -> None:
        return

    def follow(self) -> None:
        return


class _Beside:
    """Work that is done behind all that was put off before it.

    Args:
        queue: all that is put off.
    """

    def __init__(self, queue: deque[_Beside], work: Callable[[], object]) -> None:
        self._queue = queue
        self._work = work

    @property
    def passed(self) -> bool:
        return self not in self._queue

    def wait(self) -> None:
        while not self.passed:
            self._queue.popleft()._work()

    def follow(self) -> None:
        self.wait()
