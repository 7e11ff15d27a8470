"""Steps that a runner has launched: what they draw may not be known yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from headrace_engine.core.runner import Sampled


class Flight(Protocol):
    """A step that was launched."""

    @property
    def landed(self) -> bool:
        """There is nothing to wait for: it was computed, or could not be, when it was launched."""
        ...

    def wait(self) -> list[Sampled]:
        """What `Runner.run` returns for the step, once it is computed. Called once.

        Raises:
            BaseException: whatever went wrong; nobody knows what the step has computed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Landed:
    """A step that was computed while it was launched."""

    drawn: list[Sampled]
    landed: ClassVar[bool] = True

    def wait(self) -> list[Sampled]:
        """See Flight."""
        return self.drawn


@dataclass(frozen=True, slots=True)
class Crashed:
    """A step that could not be launched."""

    error: BaseException
    landed: ClassVar[bool] = True

    def wait(self) -> list[Sampled]:
        """See Flight."""
        raise self.error
