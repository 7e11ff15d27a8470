"""Steps that the device computes while the host schedules the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from headrace_engine.core.runner import Sampled

if TYPE_CHECKING:
    from headrace_engine.backends.cuda.device.device import Mark

DEPTH = 2
"""Maximum number of in-flight steps, and of staging slots: a slot is reused once its step was waited for."""


class InFlightDeviceStep:
    """An in-flight step on the device, which owns the step's staging slot until it was waited for.

    Args:
        mark: the end of the step.
        read: reads the results from the staging slot, once the device has reached the mark.

    Attributes:
        waited: the step has ended, or failed: its slot may be reused.
    """

    finished: ClassVar[bool] = False

    def __init__(self, mark: Mark, read: Callable[[], Iterable[Sampled]]) -> None:
        self._mark = mark
        self._read = read
        self.waited = False

    def wait(self) -> list[Sampled]:
        """See InFlightStep."""
        try:
            self._mark.wait()
            return list(self._read())
        finally:
            # After a failure too: nobody waits twice, and the slot would stay taken.
            self.waited = True
