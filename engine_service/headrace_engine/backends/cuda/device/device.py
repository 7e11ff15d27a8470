"""The interface of a device: pinned memory, kernels, and steps that are captured and replayed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Lock
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.cards import check_card
from headrace_engine.backends.cuda.device.flash import VaryingAttention, torch_attention
from headrace_engine.backends.cuda.device.paged import FlashInfer, PagedMaker
from headrace_engine.backends.torch.sampling.processing import Kernel
from headrace_engine.backends.torch.sampling.user_kernels import compile_kernel
from headrace_engine.backends.torch.workspace import measured_bytes
from headrace_engine.ipc.plans import ProcessorFile
from headrace_engine.native import Native, load

Result = TypeVar("Result")

_CAPTURING = Lock()
"""Held during captures, and while a thread waits for a whole device, which is an error during a capture."""


class Graph(Protocol):
    """A captured step."""

    def replay(self) -> None:
        """Enqueue the step again, on the current contents of its memory."""
        ...


class Mark(Protocol):
    """A point in a queue of the device's work."""

    def wait(self) -> None:
        """Wait until the device has reached it."""
        ...

    def follow(self) -> None:
        """Have the device begin what is enqueued from now on once it has reached it."""
        ...

    @property
    def passed(self) -> bool:
        """True if the device has reached it."""
        ...


class Device(Protocol):
    """A device of the backend. Work is done in the order in which it was enqueued, but for that of `beside`.

    Attributes:
        name: used in messages and sizes.
        torch: device of its tensors.
        native: the library with the kernels.
        multiprocessors: number of thread blocks that it runs concurrently.
        capability: its compute capability.
    """

    name: str
    torch: torch.device
    native: Native
    multiprocessors: int
    capability: tuple[int, int]

    def launch(self, op: str, args: ctypes.Structure) -> None:
        """Enqueue a kernel of csrc.

        Args:
            op: "rms_norm" for core_rms_norm.
            args: its parameters. The memory that they point to must not be reused until the work is done; torch ensures
                that for tensors, since it reuses their memory in stream order.

        Raises:
            NativeError: an argument is wrong, or the device refused the launch.
        """
        ...

    def kernel(self, source: str, file: ProcessorFile) -> Kernel:
        """Compile a logits processor in CUDA.

        Raises:
            BadProcessor: it does not compile; the message is the compiler's.
        """
        ...

    def attention(self) -> VaryingAttention:
        """Return torch's own attention for whole prompts.

        Raises:
            InvalidArgument: the installed torch has none.
        """
        ...

    def paged_attention(self) -> PagedMaker:
        """Return FlashInfer's attention for prompts.

        Raises:
            InvalidArgument: it is not installed, or too old.
        """
        ...

    def pinned(self, nbytes: int) -> Tensor:
        """Return page-locked host memory, which the device copies asynchronously: uint8 [nbytes], zeroed."""
        ...

    def mark(self) -> Mark:
        """Mark the end of the work enqueued so far."""
        ...

    def beside(self, work: Callable[[], object]) -> Mark:
        """Have what a call enqueues done behind what was enqueued before, but beside what is enqueued from now on.

        Returns:
            Its end. Calls are done in their order.
        """
        ...

    def capture(self, work: Callable[[], Result]) -> tuple[Graph, Result]:
        """Capture the work that a call enqueues. Call it once before, so that kernels are loaded and chosen."""
        ...

    def memory(self) -> tuple[int, int]:
        """Return total and free memory, in bytes."""
        ...

    def taken(self, work: Callable[[], object]) -> int:
        """Return the peak memory of a call in addition to that in use before, in bytes; 0 if unknown."""
        ...


class CudaDevice:
    """A CUDA device, with streams of its own, the first of which becomes torch's current one for the calling thread.

    So models that threads of one process compute do not wait for each other.

    Args:
        index: number of the device.

    Raises:
        InvalidArgument: the device is missing, or it or its driver is too old.
        NativeUnavailable: the library with the kernels cannot be loaded.
    """

    def __init__(self, index: int) -> None:
        check_card(index)
        self.torch = torch.device("cuda", index)
        self.name = str(self.torch)
        self.native = load("cuda")
        self.multiprocessors = torch.cuda.get_device_properties(self.torch).multi_processor_count
        self.capability = torch.cuda.get_device_capability(self.torch)
        # Memory of all graphs: they may share it because the device replays them one after the other.
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.set_device(self.torch)
        self._stream, self._second = torch.cuda.Stream(self.torch), torch.cuda.Stream(self.torch)
        self._stream.wait_stream(torch.cuda.current_stream(self.torch))
        torch.cuda.set_stream(self._stream)

    def launch(self, op: str, args: ctypes.Structure) -> None:
        """See Device."""
        self.native.launch(op, args, torch.cuda.current_stream(self.torch).cuda_stream)

    def kernel(self, source: str, file: ProcessorFile) -> Kernel:
        """See Device."""
        return compile_kernel(self.torch, source, file)

    def attention(self) -> VaryingAttention:
        """See Device."""
        return torch_attention()

    def paged_attention(self) -> PagedMaker:
        """See Device."""
        return FlashInfer(self.torch)

    def pinned(self, nbytes: int) -> Tensor:
        """See Device."""
        import cupyx

        return torch.from_numpy(cupyx.zeros_pinned(nbytes, dtype="uint8"))

    def mark(self) -> Mark:
        """See Device."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.torch))
        return _EventMark(event)

    def beside(self, work: Callable[[], object]) -> Mark:
        """See Device."""
        self._second.wait_stream(torch.cuda.current_stream(self.torch))
        with torch.cuda.stream(self._second):
            work()
            return self.mark()

    def capture(self, work: Callable[[], Result]) -> tuple[Graph, Result]:
        """See Device."""
        graph = torch.cuda.CUDAGraph()
        with _CAPTURING:
            torch.cuda.synchronize(self.torch)
            # Threads of this process may compute other models: what they do meanwhile must not void the capture.
            capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
            with torch.inference_mode(), capture:
                result = work()
        return graph, result

    def memory(self) -> tuple[int, int]:
        """See Device."""
        free, total = torch.cuda.mem_get_info(self.torch)
        return total, free

    def taken(self, work: Callable[[], object]) -> int:
        """See Device."""
        with _CAPTURING:
            taken = measured_bytes(self.torch, work)
        torch.cuda.empty_cache()
        return taken


class _EventMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()

    def follow(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)

    @property
    def passed(self) -> bool:
        passed: bool = self._event.query()
        return passed
