"""What the backend needs of a device: pinned memory, kernels, and steps that are captured and replayed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.cards import check_card
from headrace_engine.backends.cuda.device.flash import VaryingAttention, torch_attention
from headrace_engine.backends.torch.sampling.processing import Kernel
from headrace_engine.backends.torch.sampling.user_kernels import compile_kernel
from headrace_engine.backends.torch.workspace import measured_bytes
from headrace_engine.commands import ProcessorFile
from headrace_engine.native import Native, load

Result = TypeVar("Result")


class Graph(Protocol):
    """A captured step."""

    def replay(self) -> None:
        """Compute it again, on what its memory holds now."""
        ...


class Mark(Protocol):
    """A point in the device's work."""

    def wait(self) -> None:
        """Return when the device has come to it."""
        ...


class Device(Protocol):
    """Where the backend computes. Work is done in the order in which it was enqueued.

    Attributes:
        name: in messages and sizes.
        torch: where tensors lie.
        native: the library with the kernels.
        multiprocessors: how many blocks of threads it runs beside one another.
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
            args: its parameters; the memory that they name must live until the work is done.

        Raises:
            NativeError: an argument is wrong, or the device refused the launch.
        """
        ...

    def kernel(self, source: str, file: ProcessorFile) -> Kernel:
        """A logits processor in CUDA, compiled.

        Raises:
            BadProcessor: what the compiler says.
        """
        ...

    def attention(self) -> VaryingAttention:
        """Attention of whole prompts that torch computes itself.

        Raises:
            InvalidArgument: the installed torch has none.
        """
        ...

    def pinned(self, nbytes: int) -> Tensor:
        """Bytes of the host that the device copies from and to without help: uint8 [nbytes], zeroed."""
        ...

    def mark(self) -> Mark:
        """The end of what is enqueued so far."""
        ...

    def capture(self, work: Callable[[], Result]) -> tuple[Graph, Result]:
        """Capture what a call enqueues. Call it once before, so that everything is loaded and chosen."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes in all, and free."""
        ...

    def taken(self, work: Callable[[], object]) -> int:
        """Bytes that a call takes at its peak beyond what was taken before; 0 where that is not known."""
        ...


class CudaDevice:
    """A CUDA device. Work goes to torch's current stream.

    Args:
        index: number of the device.

    Raises:
        InvalidArgument: it is not there, too old, or its driver is.
        NativeUnavailable: there is no library with the kernels.
    """

    def __init__(self, index: int) -> None:
        check_card(index)
        self.torch = torch.device("cuda", index)
        self.name = str(self.torch)
        self.native = load("cuda")
        self.multiprocessors = torch.cuda.get_device_properties(self.torch).multi_processor_count
        self.capability = torch.cuda.get_device_capability(self.torch)
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.set_device(self.torch)

    def launch(self, op: str, args: ctypes.Structure) -> None:
        """See Device."""
        self.native.launch(op, args, torch.cuda.current_stream(self.torch).cuda_stream)

    def kernel(self, source: str, file: ProcessorFile) -> Kernel:
        """See Device."""
        return compile_kernel(self.torch, source, file)

    def attention(self) -> VaryingAttention:
        """See Device."""
        return torch_attention()

    def pinned(self, nbytes: int) -> Tensor:
        """See Device."""
        import cupyx

        return torch.from_numpy(cupyx.zeros_pinned(nbytes, dtype="uint8"))

    def mark(self) -> Mark:
        """See Device."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.torch))
        return _EventMark(event)

    def capture(self, work: Callable[[], Result]) -> tuple[Graph, Result]:
        """See Device."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.torch)
        with torch.inference_mode(), torch.cuda.graph(graph, pool=self._pool):
            result = work()
        return graph, result

    def memory(self) -> tuple[int, int]:
        """See Device."""
        free, total = torch.cuda.mem_get_info(self.torch)
        return total, free

    def taken(self, work: Callable[[], object]) -> int:
        """See Device."""
        taken = measured_bytes(self.torch, work)
        torch.cuda.empty_cache()
        return taken


class _EventMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()
