"""Answers pings while a step lasts."""

from __future__ import annotations

import threading
from types import TracebackType

from headrace_engine.core.link import LinkClosed, PingedLink
from headrace_engine.core.runner import Runner

_INTERVAL = 0.1
"""Seconds between two looks for pings."""


class Pulse:
    """A thread that tells the front half how far a runner is, while the core's own thread waits for it.

    A context manager. A core that is cut off has its runner interrupted.

    Args:
        link: the core's.
        runner: must not be closed before this has ended.
        interval: seconds between two looks for pings.
    """

    def __init__(self, link: PingedLink, runner: Runner, interval: float = _INTERVAL) -> None:
        self._link = link
        self._runner = runner
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-pulse", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._interval):
                self._link.answer(self._runner.progress)
        except LinkClosed:
            self._runner.interrupt()
