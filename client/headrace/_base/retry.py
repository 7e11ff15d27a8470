"""Retries of failed calls: policy, decision and delay."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import HeadraceError, OverloadedError, UnavailableError


@dataclass(frozen=True)
class RetryPolicy:
    """Policy for retrying failed calls and broken streams.

    Attributes:
        first_delay: upper bound of the first delay, in seconds; it doubles with each failure. The delay is random
            between 0 and the bound, so that many clients do not retry at the same time.
        max_delay: maximum of that bound, in seconds. A server that restarts is found again within about twice this
            time.
        give_up_after: seconds without an answer from any server after which a call fails, even before its timeout. A
            blocked Get() raises UnavailableError then, and may be called again.
        retry_overload: retry after OverloadedError too, if the server says when.
    """

    first_delay: float = 0.1
    max_delay: float = 2.0
    give_up_after: float = 30.0
    retry_overload: bool = False


ONCE = RetryPolicy(give_up_after=0.0)
"""Policy of a call that is not retried."""


class Time(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed point in time."""


class Clock(Time, Protocol):
    """The source of time of a synchronous client."""

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait for a condition, which is held, at most this many seconds; None: without limit."""


class SystemClock:
    """Real time."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed point in time."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait for a condition, which is held, at most this many seconds; None: without limit."""
        condition.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))


def should_retry(error: HeadraceError, policy: RetryPolicy, *, idempotent: bool = True) -> bool:
    """Return whether a call may succeed if it is repeated, without harm if it was carried out before."""
    if not idempotent:
        return False
    if isinstance(error, OverloadedError):
        return policy.retry_overload and error.retry_after is not None
    return isinstance(error, UnavailableError) and error.reason != "CLIENT_CLOSED"


def retry_delay(error: HeadraceError, policy: RetryPolicy, failures: int) -> float:
    """Return the seconds to wait after this many failures in a row; a time that the server gave takes precedence."""
    if error.retry_after is not None:
        return error.retry_after
    # The exponent is limited too: 2.0 ** 1100 overflows.
    bound = min(policy.max_delay, policy.first_delay * 2.0 ** min(failures - 1, 30))
    return random.uniform(0.0, bound)
