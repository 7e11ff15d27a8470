"""An engine that fails what it is given is passed over for a while."""

from __future__ import annotations

from headrace_gateway.engines.breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Breaker
from support.clocks.settable import Now


def test_failures_in_a_row_open_it_and_one_success_closes_it() -> None:
    now = Now()
    breaker = Breaker(now)
    assert [breaker.failed() for _ in range(FAILURES - 1)] == [False] * (FAILURES - 1)
    assert breaker.closed
    breaker.succeeded()
    assert [breaker.failed() for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    assert not breaker.closed
    now.seconds = FIRST_PAUSE
    assert breaker.closed
    breaker.trying()
    assert not breaker.closed  # one at a time
    breaker.succeeded()
    assert breaker.closed


def test_each_failure_after_a_pause_doubles_it() -> None:
    now = Now()
    breaker = Breaker(now)
    for _ in range(FAILURES):
        breaker.failed()
    pauses = []
    for _ in range(8):
        begun = now.seconds
        while not breaker.closed:
            now.seconds += 0.5
        pauses.append(now.seconds - begun)
        breaker.trying()
        assert breaker.failed() is False
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
