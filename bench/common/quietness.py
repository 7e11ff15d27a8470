"""Detects load by other processes: a run waits for a quiet moment, and records the CPU cores that others used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

LOUD = 0.2
"""CPU cores that others may use before a run counts as disturbed."""

_CALM = 0.15
_LOOK = 0.3
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Quietness:
    """Watches the machine's load.

    Args:
        patience: maximum seconds that a run waits for a quiet moment.
    """

    patience: float = 20.0

    def wait(self) -> None:
        """Wait until the machine is quiet, including its own idle servers, for at most `patience` seconds."""
        end = time.monotonic() + self.patience
        while self._used(lambda: time.sleep(_LOOK))[1] > _CALM and time.monotonic() < end:
            pass

    def watched(self, run: Callable[[], T]) -> tuple[T, float]:
        """Return a run's result, and the CPU cores used by processes other than this one and its descendants."""
        own = _own_seconds()
        result, used, seconds = self._timed(run)
        return result, max(0.0, used - (_own_seconds() - own)) / seconds

    def _used(self, run: Callable[[], T]) -> tuple[T, float]:
        result, used, seconds = self._timed(run)
        return result, used / seconds

    def _timed(self, run: Callable[[], T]) -> tuple[T, float, float]:
        busy, began = _busy_seconds(), time.monotonic()
        result = run()
        return result, _busy_seconds() - busy, time.monotonic() - began


def _busy_seconds() -> float:
    """Return the busy seconds of all CPU cores since boot."""
    times = list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]))
    return (sum(times) - times[3] - times[4]) / _TICK


def _own_seconds() -> float:
    """Return the CPU seconds of this process and its descendants so far."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
