"""Logits processors: Python functions, given directly or in files of the engine's operator."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headrace_engine.core.row_fields import Processing
from headrace_engine.core.runner import SequenceStep
from headrace_engine.errors import BadProcessor, in_words
from headrace_engine.ipc.plans import ProcessorFile
from headrace_engine.regular_files import read_regular

Process = Callable[[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]], None]
"""Change the logits of a row in place, given all ids of its sequence and the request's arguments."""

LONGEST_SOURCE = 2**24
"""Maximum size of a source file, in bytes."""

FUNCTION = "process"
"""Name of the function in a file."""

NO_PROCESSES: Mapping[str, Process] = {}
"""Default for callers that have files only."""

_ARGUMENTS = ("logits", "ids", "arguments")


def python_processes(files: Iterable[ProcessorFile], given: Mapping[str, Process]) -> dict[str, Process]:
    """Return the functions of the Python processors, by name.

    Args:
        given: functions of processors without a file.

    Raises:
        BadProcessor: a file cannot be read, fails, or lacks the function; or one without a file is not in `given`.
    """
    found: dict[str, Process] = {}
    for file in files:
        if not file.path:
            found[file.name] = _checked(given.get(file.name), f"logits processor {file.name!r}")
        elif file.path.endswith(".py"):
            found[file.name] = _checked(getattr(_module(file), FUNCTION, None), label(file))
    return found


def device_sources(files: Iterable[ProcessorFile]) -> list[ProcessorFile]:
    """Return the processors that are device code."""
    return [file for file in files if file.path.endswith(".cu")]


def idle_device_sources(files: Iterable[ProcessorFile], backend: str) -> dict[str, str]:
    """Return, by name, why a backend cannot run processors that are device code."""
    return {
        file.name: f"{Path(file.path).name} is for CUDA devices, and {backend} computes"
        for file in device_sources(files)
    }


def label(file: ProcessorFile) -> str:
    """Return the name and file of a processor, for messages."""
    return f"logits processor {file.name!r} ({Path(file.path).name})"


def is_processed(steps: Sequence[SequenceStep]) -> bool:
    """Return True if a row has logits processors, or candidates to find on the host."""
    return any(step.processing is not None or step.candidates for step in steps)


def run_processes(row: NDArray[np.float32], processing: Processing, processes: Mapping[str, Process]) -> str:
    """Run each processor on a row, in place.

    Returns:
        The error of the first that fails; "" if all succeed.
    """
    forbidden = np.isneginf(row) if is_cut(row) else None
    for one in processing.processors:
        error = run_process(processes[one.name], row, processing.ids, one.arguments)
        if error:
            return f"logits processor {one.name!r}: {error}"
    if forbidden is not None:
        row[forbidden] = -math.inf
    return ""


def is_cut(row: NDArray[np.float32]) -> bool:
    """Return True if some ids of a row may not be sampled."""
    return bool(row.min() == -math.inf)


def run_process(process: Process, row: NDArray[np.float32], ids: array[int], arguments: tuple[float, ...]) -> str:
    """Run one processor on a row, in place; return an error, or "".

    It gets a view of the row and copies of the rest, so that it may reshape or retain its arguments.
    """
    known, numbers = np.array(ids, dtype=np.int32), np.array(arguments, dtype=np.float32)
    try:
        returned: object = process(row[:], known, numbers)  # type: ignore[func-returns-value]
    except BaseException as error:  # User code may call exit.
        return in_words(error)
    if returned is not None:
        return f"returned {type(returned).__name__}; it has to change the logits in place, and return nothing"
    if row.max() < math.inf:  # False if any is NaN, too.
        return ""
    token_id = int((np.isnan(row) | np.isposinf(row)).argmax())
    return wrong_logit(token_id, float(row[token_id]))


def wrong_logit(token_id: int, value: float) -> str:
    """Return the error message for an invalid logit left by a processor."""
    return f"left {value} as the logit of id {token_id}; allowed: any number, and -inf for ids that may not be sampled"


def _module(file: ProcessorFile) -> ModuleType:
    """Load a file as a new module."""
    spec = importlib.util.spec_from_file_location(f"headrace_logits_processor_{file.name}", Path(file.path))
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        read_regular(Path(file.path), LONGEST_SOURCE)  # The loader would block on a FIFO.
        spec.loader.exec_module(module)
    except BaseException as error:  # User code may call exit.
        del sys.modules[spec.name]
        raise BadProcessor(f"{label(file)}: {in_words(error)}") from error
    return module


def _checked(process: Process | None, what: str) -> Process:
    if process is None:
        raise BadProcessor(f"{what} has no function {FUNCTION}({', '.join(_ARGUMENTS)})")
    try:
        inspect.signature(process).bind(*_ARGUMENTS)
    except (TypeError, ValueError) as error:
        text = f"its function has to take {', '.join(_ARGUMENTS)}: {error}"
        raise BadProcessor(f"{what}: {text}") from error
    return process
