"""Logits processors in CUDA, compiled by cupy (NVRTC) when a model starts; cupy caches compiled kernels on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace_engine.backends.processors import FUNCTION, LONGEST_SOURCE, device_sources, idle_device_sources, label
from headrace_engine.backends.torch.sampling.processing import Kernel
from headrace_engine.errors import BadProcessor
from headrace_engine.ipc.plans import ProcessorFile
from headrace_engine.regular_files import read_regular

_OPTIONS = ("--std=c++17",)
_MAX_THREADS = 1024
_WARP = 32

Compile = Callable[[str, ProcessorFile], Kernel]
"""Compile CUDA source; raise BadProcessor with the compiler's message if it fails."""


def device_kernels(files: Iterable[ProcessorFile], device: torch.device) -> tuple[dict[str, Kernel], dict[str, str]]:
    """Return the kernels of files with device code, and the reasons why others cannot run on the device; by name.

    Raises:
        BadProcessor: a file cannot be read or compiled.
    """
    files = device_sources(files)
    if device.type != "cuda":
        return {}, idle_device_sources(files, f"the torch backend on a {device.type.upper()}")
    return compiled(files, partial(compile_kernel, device)), {}


def compiled(files: Iterable[ProcessorFile], compile_one: Compile) -> dict[str, Kernel]:
    """Return the kernel of each file, by name.

    Raises:
        BadProcessor: one cannot be read or compiled.
    """
    return {file.name: compile_one(_source(file), file) for file in files}


def compile_kernel(device: torch.device, source: str, file: ProcessorFile) -> Kernel:
    """Compile a kernel for a CUDA device.

    Raises:
        BadProcessor: cupy is missing, or the source does not compile; the message is NVRTC's.
    """
    try:
        import cupy
    except ImportError as error:
        raise BadProcessor(f"{label(file)} needs cupy to be compiled (pip install cupy-cuda13x): {error}") from error
    with cupy.cuda.Device(device.index):
        try:
            function = cupy.RawModule(code=source, options=_OPTIONS).get_function(FUNCTION)
            threads = min(_MAX_THREADS, function.max_threads_per_block) // _WARP * _WARP
        except Exception as error:  # From the compiler, the driver, or a missing NVRTC.
            raise not_compiled(file, str(error)) from error
    return partial(_launch, function, threads)


def not_compiled(file: ProcessorFile, why: str) -> BadProcessor:
    """Return the error for a file that could not be compiled."""
    return BadProcessor(f'{label(file)} gives no kernel extern "C" __global__ void {FUNCTION}(…): {why}')


def _launch(function: Any, threads: int, row: Tensor, ids: Tensor, arguments: Tensor) -> None:
    """Launch one thread block on torch's stream."""
    import cupy

    sized = ((tensor.data_ptr(), len(tensor)) for tensor in (row, ids, arguments))
    flat = [cupy.int32(value) if number % 2 else value for pair in sized for number, value in enumerate(pair)]
    with cupy.cuda.Device(row.device.index):
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream(row.device).cuda_stream)
        with stream:
            function((1,), (threads,), tuple(flat))


def _source(file: ProcessorFile) -> str:
    try:
        return read_regular(Path(file.path), LONGEST_SOURCE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadProcessor(f"{label(file)} cannot be read: {error}") from error
