"""Deciding whether and when to open a broken stream again."""

from __future__ import annotations

import logging

from headrace._base.retry import RetryPolicy, Time, retry_delay
from headrace._streaming.reader import SequenceReader
from headrace._transport.transport import STATUS_LOST
from headrace.errors import EngineLostError, HeadraceError, OverloadedError, UnavailableError

# Codes that proxies and dying processes cause, without a reason of Headrace's: another stream may succeed.
_SUSPECT = frozenset({"CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED", "DATA_LOSS"})
_SUSPECT_LIMIT = 3

# The attempt after a first failure often succeeds, at another address or a restarted server, so log the second.
_LOGGED_FAILURE = 2

_NO_ANSWER = frozenset({"UNAVAILABLE", STATUS_LOST})
_UNREACHABLE = frozenset({"ENGINE_UNREACHABLE", "DRAINING"})

logger = logging.getLogger(__name__)


class Recovery:
    """Counts the failures of one stream since its last message.

    Args:
        policy: delays, and the time after which to give up.
        clock: source of time.
    """

    def __init__(self, policy: RetryPolicy, clock: Time) -> None:
        self._clock = clock
        self._policy = policy
        self._failures = 0
        self._since: float | None = None
        self._logged = False

    def progressed(self) -> None:
        """Record that the stream delivered a message."""
        self._failures = 0
        self._logged = False
        self._since = None

    def reached(self) -> None:
        """Record that the server was reached but has delivered nothing yet."""
        self._since = None

    def delay(self, error: HeadraceError) -> float | None:
        """Count a failure, and return the seconds until the stream should be opened again; None if it is final."""
        self._failures += 1
        if self._since is None:
            self._since = self._clock.monotonic()
        if error.reason in _SUSPECT:
            return None if self._failures >= _SUSPECT_LIMIT else retry_delay(error, self._policy, self._failures)
        if error.reason == "CLIENT_CLOSED":
            return None
        if isinstance(error, UnavailableError) or (isinstance(error, OverloadedError) and error.retry_after):
            return retry_delay(error, self._policy, self._failures)
        return None

    def log_failure(self, error: HeadraceError) -> None:
        """Log a failure that `delay` counted, once in a row of failures.

        A failure without its status may be a refusal that the next attempt meets again and handles; it is not logged.
        """
        if self._logged or self._failures < _LOGGED_FAILURE or error.reason == STATUS_LOST:
            return
        if self._since is not None:
            self._logged = True
            left = self._policy.give_up_after - (self._clock.monotonic() - self._since)
            logger.warning("the connection was lost: %s Trying again for up to %.0f s.", error, max(0.0, left))

    @property
    def too_long(self) -> bool:
        """True if failures have lasted long enough to raise them to readers."""
        return self._since is not None and self._clock.monotonic() - self._since >= self._policy.give_up_after


def as_loss(error: HeadraceError, reader: SequenceReader) -> HeadraceError:
    """Return the loss of the engine that a failure means for a sequence which can be handed over; else the failure.

    A gateway says of an engine that does not answer whether it counts as lost, and does not know one that has left its
    list. One that drains has nothing more to give once it cannot be read any more.
    """
    if not reader.movable or error.reason not in (*_UNREACHABLE, "UNKNOWN_ENGINE"):
        return error
    lost = error.details.get("metadata", {}).get("lost") == "true"
    if not (lost or reader.drained or error.reason == "UNKNOWN_ENGINE"):
        return error
    return EngineLostError(error.message, reason=error.reason, request_id=error.request_id, details=error.details)


def unanswered(error: HeadraceError) -> bool:
    """Return whether a call failed because no server was reached, rather than by what one answered."""
    return isinstance(error, UnavailableError) and error.reason in _NO_ANSWER
