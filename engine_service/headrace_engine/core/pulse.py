"""Answers pings during a step."""

from __future__ import annotations

import threading
from types import TracebackType

from headrace_engine.core.link import LinkClosed, PingedLink
from headrace_engine.core.runner import Runner

_INTERVAL = 0.1
"""Seconds between two checks for pings."""


class Pulse:
    """Context manager with a thread that reports a runner's progress while the core's own thread waits for it.

    If the front half cuts the core off, the thread interrupts the runner. If the runner is lost, it says so to the
    front half, and cuts the core off.

    Args:
        link: the core's link.
        runner: must not be closed before the context has ended.
        interval: seconds between two checks for pings.
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
        # Joined: whoever closes the runner next can be sure that this thread does not use it.
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._interval):
                if self._runner.lost is not None:
                    self._link.send(self._runner.lost)
                    self._link.cut()
                    return
                self._link.answer(self._runner.progress)
        except LinkClosed:
            self._runner.interrupt()
