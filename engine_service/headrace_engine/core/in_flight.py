"""Handles of steps that a runner has launched and whose results may not be known yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from headrace_engine.core.runner import Sampled


class InFlightStep(Protocol):
    """Handle of a launched step. While it is in flight, the runner owns its results and reads its block tables."""

    @property
    def finished(self) -> bool:
        """True if the step was computed, or failed, during its launch, so that `wait` returns at once."""
        ...

    def wait(self) -> list[Sampled]:
        """Wait until the step is computed and return what `Runner.run` would. Called once.

        Raises:
            BaseException: the step failed; it may have been computed in part.
        """
        ...


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that was computed during its launch."""

    results: list[Sampled]
    finished: ClassVar[bool] = True

    def wait(self) -> list[Sampled]:
        """See InFlightStep."""
        return self.results


@dataclass(frozen=True, slots=True)
class FailedLaunch:
    """A step whose launch failed."""

    error: BaseException
    finished: ClassVar[bool] = True

    def wait(self) -> list[Sampled]:
        """See InFlightStep."""
        raise self.error
