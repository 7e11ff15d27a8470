"""Whether others use the machine meanwhile: a run waits for a quiet moment, and keeps what others used."""

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
"""Cores that others may use before a run counts as disturbed."""

_CALM = 0.15
_LOOK = 0.3
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Quietness:
    """Watches the machine.

    Args:
        patience: seconds that a run waits at most for a quiet moment.
    """

    patience: float = 20.0

    def wait(self) -> None:
        """Until the machine is quiet, its own idle servers included; or long enough."""
        end = time.monotonic() + self.patience
        while self._used(lambda: time.sleep(_LOOK))[1] > _CALM and time.monotonic() < end:
            pass

    def watched(self, run: Callable[[], T]) -> tuple[T, float]:
        """What a run returns, and the cores that processes other than this one and its descendants used meanwhile."""
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
    """Of all cores since the machine began."""
    times = list(map(int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]))
    return (sum(times) - times[3] - times[4]) / _TICK


def _own_seconds() -> float:
    """Of this process and its descendants, so far."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
