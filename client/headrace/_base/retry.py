"""When a failed call is tried again, and after how long: a policy, a decision, a delay."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import HeadraceError, OverloadedError, UnavailableError


@dataclass(frozen=True)
class RetryPolicy:
    """How hard a client tries.

    Attributes:
        first_delay: upper bound of the first pause, in seconds; it doubles with each failure. The pause itself is drawn
            evenly between 0 and the bound, so that many clients do not come back at the same moment.
        max_delay: the bound grows no further than this, in seconds. A server that was away is noticed at most about
            twice this time after its return.
        give_up_after: a call without a timeout of its own fails when nobody answered for this long, in seconds; a
            blocked Get() raises UnavailableError then, and may be called again.
        retry_overload: try again also after OverloadedError, where the server said when.
    """

    first_delay: float = 0.1
    max_delay: float = 2.0
    give_up_after: float = 30.0
    retry_overload: bool = False


ONCE = RetryPolicy(give_up_after=0.0)
"""A question that is not asked again."""


class Time(Protocol):
    """The passing of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""


class Clock(Time, Protocol):
    """Time, as a client sees it that waits in threads."""

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Waits for a notification at most this long; None: without a limit. The condition is held."""


class SystemClock:
    """Real time."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Waits for a notification at most this long; None: without a limit. The condition is held."""
        condition.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))


def should_retry(error: HeadraceError, policy: RetryPolicy, *, idempotent: bool = True) -> bool:
    """Whether the same call may succeed if it is sent again, and does no harm if it was carried out before."""
    if not idempotent:
        return False
    if isinstance(error, OverloadedError):
        return policy.retry_overload and error.retry_after is not None
    return isinstance(error, UnavailableError) and error.reason != "CLIENT_CLOSED"


def retry_delay(error: HeadraceError, policy: RetryPolicy, failures: int) -> float:
    """Seconds to pause after so many failures in a row; what the server asked for wins."""
    if error.retry_after is not None:
        return error.retry_after
    # The exponent is capped as well: 2.0 ** 1100 is no float.
    bound = min(policy.max_delay, policy.first_delay * 2.0 ** min(failures - 1, 30))
    return random.uniform(0.0, bound)
