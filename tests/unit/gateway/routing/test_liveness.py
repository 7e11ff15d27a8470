"""An engine that is slow, and one that is lost."""

from __future__ import annotations

from headrace_gateway.engines.liveness import LOST_SECONDS, START_SECONDS, Liveness
from support.clocks.settable import Now


class Call:
    """A call that can be cancelled."""

    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_a_wait_is_given_up_after_its_own_time_of_silence() -> None:
    now = Now()
    liveness = Liveness(now)
    start, read = Call(), Call()
    with liveness.waiting(start, START_SECONDS) as starting, liveness.waiting(read, LOST_SECONDS) as reading:
        now.seconds = START_SECONDS
        liveness.give_up()
        assert (start.cancelled, starting.given_up, read.cancelled) == (True, True, False)
        now.seconds = LOST_SECONDS
        liveness.give_up()
        assert (read.cancelled, reading.given_up) == (True, True)


def test_any_sign_of_life_begins_the_time_again() -> None:
    now = Now()
    liveness, call = Liveness(now), Call()
    with liveness.waiting(call, LOST_SECONDS):
        now.seconds = LOST_SECONDS - 1
        liveness.heard()
        now.seconds = LOST_SECONDS + 5
        liveness.give_up()
        assert (call.cancelled, liveness.silence) == (False, 6.0)


def test_an_ended_wait_is_forgotten() -> None:
    now = Now()
    liveness, call = Liveness(now), Call()
    with liveness.waiting(call, 0.0):
        pass
    liveness.give_up()
    assert not call.cancelled
