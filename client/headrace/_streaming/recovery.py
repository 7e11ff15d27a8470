"""What to do when a stream breaks: open it again, and when; or give up."""

from __future__ import annotations

import logging

from headrace._base.retry import RetryPolicy, Time, retry_delay
from headrace.errors import HeadraceError, OverloadedError, UnavailableError

# Codes that proxies and dying processes leave behind, without a reason of Headrace's: the stream may well go on.
_SUSPECT = frozenset({"CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED", "DATA_LOSS"})
_SUSPECT_LIMIT = 3

# The first failure is often over with the next attempt: at another address, or with a server that came back.
_TOLD_FAILURE = 2

logger = logging.getLogger(__name__)


class Recovery:
    """Counts the failures of one stream since it last brought something.

    Args:
        policy: delays, and how long is too long.
        clock: time.
    """

    def __init__(self, policy: RetryPolicy, clock: Time) -> None:
        self._clock = clock
        self._policy = policy
        self._failures = 0
        self._since: float | None = None

    def progressed(self) -> None:
        """The stream brought something."""
        self._failures = 0
        self._since = None

    def reached(self) -> None:
        """Somebody is there, who has yet to bring something."""
        self._since = None

    def delay(self, error: HeadraceError) -> float | None:
        """Seconds after which to open the stream again; None: this failure is final."""
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

    def tell(self, error: HeadraceError) -> None:
        """Logs a failure that `delay` counted, once in a row of them: the connection was lost, and is tried."""
        if self._failures == _TOLD_FAILURE and self._since is not None:
            left = self._policy.give_up_after - (self._clock.monotonic() - self._since)
            logger.warning("the connection was lost: %s Trying again for up to %.0f s.", error, max(0.0, left))

    @property
    def too_long(self) -> bool:
        """Whether a reader should hear of it by now."""
        return self._since is not None and self._clock.monotonic() - self._since >= self._policy.give_up_after
