"""Logits processors in CUDA on the simulated device: compiled by g++ against csrc's simulator, for tests."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from headrace_engine.backends.processors import label
from headrace_engine.backends.torch.sampling.processing import Kernel
from headrace_engine.backends.torch.sampling.user_kernels import not_compiled
from headrace_engine.errors import BadProcessor
from headrace_engine.ipc.plans import ProcessorFile
from torch import Tensor

SIMULATOR_VARIABLE = "CUSIM_FLAGS"
"""Environment variable with g++'s arguments for compiling a kernel for the simulator: header folders, the library."""

_THREADS = 64
_LAUNCHER = """
extern "C" int launch_process(float *row, int vocab, const int *ids, int length, const float *arguments, int count) {{
  return launch(process, dim3(1), dim3({threads}), 0, nullptr, row, vocab, ids, length, arguments, count);
}}
"""


def simulated_kernel(source: str, file: ProcessorFile) -> Kernel:
    """Compile a kernel for the simulator.

    Raises:
        BadProcessor: the variable is not set, or g++ fails.
    """
    flags = os.environ.get(SIMULATOR_VARIABLE)
    if flags is None:
        raise BadProcessor(f"{label(file)}: the simulated device compiles nothing unless {SIMULATOR_VARIABLE} is set")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "process.so"
        text = f'#include "sim/cusim.h"\n#line 1 "{file.path}"\n{source}\n{_LAUNCHER.format(threads=_THREADS)}'
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", "-o", str(library)]
        done = subprocess.run([*command, *shlex.split(flags)], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise not_compiled(file, done.stderr)
        return partial(_launch, ctypes.CDLL(str(library)).launch_process)


def _launch(function: Any, row: Tensor, ids: Tensor, arguments: Tensor) -> None:
    """Launch one block; return when it is done."""
    sized = [(ctypes.c_void_p(tensor.data_ptr()), len(tensor)) for tensor in (row, ids, arguments)]
    status = function(*(value for pair in sized for value in pair))
    if status != 0:
        raise RuntimeError(f"the simulator refused the launch with {status}")
