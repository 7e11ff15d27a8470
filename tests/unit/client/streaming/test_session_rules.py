"""Whatever happens to the connection, every reader of a session gets its tokens once and in order, and never hangs."""

from __future__ import annotations

from headrace import GenerateStatus, UnavailableError
from headrace._base.retry import RetryPolicy
from headrace._streaming.recovery import Recovery
from headrace._streaming.session import ClientSession
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.clocks.client_clock import FakeClock
from support.scripted.wire_samples import text_of
from unit.client.streaming.session_caller import WINDOW, Caller
from unit.client.streaming.session_model import PING_INTERVAL, Link, Log, ModelServer

COUNT = 3
WHICH = st.integers(0, COUNT - 1)


class SessionRules(RuleBasedStateMachine):
    """Logs grow and end, messages arrive, streams break, windows close, callers read: in any order."""

    @initialize(lengths=st.tuples(*[st.integers(0, 40)] * COUNT))
    def start(self, lengths: tuple[int, ...]) -> None:
        self.clock = FakeClock()
        self.session = ClientSession(Recovery(RetryPolicy(give_up_after=1e9), self.clock), self.clock, client="test")
        logs = {
            f"e/i/{number}": Log([100 * number + place for place in range(length)], tail="…" * number)
            for number, length in enumerate(lengths)
        }
        self.link = Link(self.session, ModelServer(logs))
        self.logs = list(logs.values())
        self.callers = [Caller(self.session, self.clock, handle) for handle in logs]

    @rule(which=WHICH, count=st.integers(1, 12))
    def produce(self, which: int, count: int) -> None:
        log = self.logs[which]
        if not log.ended:
            log.length = min(len(log.ids), log.length + count)

    @rule(which=WHICH)
    def end(self, which: int) -> None:
        log = self.logs[which]
        log.ids = log.ids[: log.length]
        log.ended = True

    @rule()
    def open(self) -> None:
        if not self.link.open:
            self.link.begin()

    @rule()
    def cut(self) -> None:
        if self.link.open:
            self.link.cut()
            delay = self.session.broken(UnavailableError("cut."))
            assert delay is not None
            self.clock.advance(delay)

    @rule()
    def client_speaks(self) -> None:
        self.link.client_speaks()

    @rule()
    def server_hears(self) -> None:
        self.link.server_hears()

    @rule(most=st.integers(1, 9))
    def server_speaks(self, most: int) -> None:
        self.link.server_speaks(most)

    @rule()
    def client_hears(self) -> None:
        self.link.client_hears()

    @rule(most=st.integers(1, 9), times=st.integers(1, 3))
    def exchange(self, most: int, times: int) -> None:
        """All that is to be said arrives."""
        for _ in range(times):
            self.link.client_speaks()
            while self.link.server_hears():
                pass
            self.link.server_speaks(most)
            while self.link.client_hears():
                pass

    @rule()
    def reconnect(self) -> None:
        self.cut()
        self.open()
        self.exchange(9, 1)

    @rule(which=WHICH)
    def hold(self, which: int) -> None:
        self.link.server.hold(f"e/i/{which}")

    @rule(down=st.booleans())
    def engine(self, down: bool) -> None:
        self.link.server.down = down

    @rule(seconds=st.floats(0, 2))
    def time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(which=WHICH)
    def read(self, which: int) -> None:
        self.callers[which].read()

    @rule(which=WHICH)
    def get(self, which: int) -> None:
        self.callers[which].begin_get()

    @rule(which=WHICH)
    def drop(self, which: int) -> None:
        if self.callers[which].waits is None:
            self.callers[which].drop()

    @rule(which=WHICH)
    def poll(self, which: int) -> None:
        """From the first read on, an end is told only when nothing is unread."""
        caller, log = self.callers[which], self.logs[which]
        if caller.ids and caller.reader.status() is GenerateStatus.GenerateFinished:
            assert caller.ids == log.ids
            assert caller.text == text_of(log.ids) + log.tail

    @invariant()
    def nothing_is_lost_twice_or_piled_up(self) -> None:
        for caller, log in zip(getattr(self, "callers", []), getattr(self, "logs", []), strict=True):
            assert caller.ids == log.ids[: len(caller.ids)]
            unread = caller.reader.position - len(caller.ids)
            assert unread <= WINDOW or caller.waits is not None

    def teardown(self) -> None:
        """All is well in the end: everybody who reads gets everything, and is detached."""
        if not hasattr(self, "callers"):
            return
        self.link.server.down = False
        for number, log in enumerate(self.logs):
            log.length = len(log.ids)
            self.end(number)
        self.open()
        while self._go_on():
            pass
        for caller, log in zip(self.callers, self.logs, strict=True):
            if not caller.gone:
                assert caller.reader.settled
                assert caller.ids == log.ids
                assert caller.text == text_of(log.ids) + log.tail
        assert self.session.subscriptions == []
        assert self.link.server.channels == {}

    def _go_on(self) -> bool:
        """Whether anything was left to do; time passes only where an attach is pending."""
        link = self.link
        acts = [link.client_speaks(), link.server_hears(), link.server_speaks(5), link.client_hears()]
        acts += [caller.get_again() for caller in self.callers]
        wait = self.session.wait or 0.0
        if not any(acts) and wait < PING_INTERVAL / 2:
            self.clock.advance(wait)
            return True
        return any(acts)


SessionRules.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestSessionRules = SessionRules.TestCase
