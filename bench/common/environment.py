"""The environment variables of the measurements; docs/environment.md lists them with those of the servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LLAMA_SERVER = "HEADRACE_BENCH_LLAMA_SERVER"
OPENVINO = "HEADRACE_BENCH_OPENVINO"
MODELS = "HEADRACE_BENCH_MODELS"
STEPS = "HEADRACE_BENCH_STEPS"
STEP_SECONDS = "HEADRACE_BENCH_STEP_SECONDS"
CALLS = "HEADRACE_BENCH_CALLS"


def installed(variable: str) -> Path | None:
    """Return the path that a variable names; None if it is not set.

    Raises:
        SystemExit: the path does not exist.
    """
    text = os.environ.get(variable)
    if not text:
        return None
    if not Path(text).exists():
        raise SystemExit(f"{variable}: {text} is not there")
    return Path(text)


def models_folder(default: Path) -> Path:
    """Return the folder of the models that are measured."""
    return Path(os.environ.get(MODELS) or default)


def given(variable: str) -> str:
    """Return the value of a variable that a parent process sets.

    Raises:
        SystemExit: it is not set.
    """
    try:
        return os.environ[variable]
    except KeyError:
        raise SystemExit(f"{variable} is not set: a measurement starts this program") from None


def step_seconds(default: float) -> float:
    """Return the seconds of a step of a scripted engine."""
    return float(os.environ.get(STEP_SECONDS) or default)


@contextmanager
def variable_set(variable: str, value: str | Path) -> Iterator[None]:
    """Set a variable for this process, and those that it starts, within this context."""
    before = os.environ.get(variable)
    os.environ[variable] = str(value)
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
