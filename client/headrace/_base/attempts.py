"""The attempts of one call, without I/O: how long each may take, and what follows a failure."""

from __future__ import annotations

import logging

from headrace._base.deadline import Deadline
from headrace._base.retry import RetryPolicy, Time, retry_delay, should_retry
from headrace.errors import HeadraceError

logger = logging.getLogger(__name__)


class Attempts:
    """Counts the failures of a call, and decides when to retry. All calls are idempotent.

    Args:
        policy: retry policy.
        clock: source of time.
        timeout: seconds for all attempts together; None: no limit. In any case the call fails if no server answers
            within the policy's `give_up_after`.

    Attributes:
        failures: number of failures.
    """

    def __init__(self, policy: RetryPolicy, clock: Time, timeout: float | None) -> None:
        self.failures = 0
        self._logged = False
        self._policy = policy
        self._clock = clock
        self._deadline = Deadline(clock, timeout)
        self._patience: Deadline | None = None

    @property
    def left(self) -> float | None:
        """Seconds that the next attempt may take; None: no limit."""
        return self._deadline.left()

    def pause(self, error: HeadraceError, next_address: str = "") -> float:
        """Count a failure, and return the seconds to wait before the next attempt.

        Args:
            error: the failure.
            next_address: address of the next attempt, if it is another one; else "".

        Raises:
            HeadraceError: the failure itself, if a retry makes no sense or there is no time left for it.
        """
        self.failures += 1
        self._patience = self._patience or Deadline(self._clock, self._policy.give_up_after)
        if not should_retry(error, self._policy):
            raise error
        delay = retry_delay(error, self._policy, self.failures)
        left = min(seconds for limit in (self._deadline, self._patience) if (seconds := limit.left()) is not None)
        if delay >= left:
            raise error
        if self.failures == 1 and next_address:
            logger.warning("%s; using %s instead", error.message.removesuffix("."), next_address)
        elif not self._logged:
            self._logged = True
            logger.warning("%s Trying again for up to %.0f s.", error, left)
        return delay
