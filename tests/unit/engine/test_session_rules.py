"""Whatever happens in whatever order: each channel tells its log, from its position on, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace_engine.engine.result_log import ResultLog
from headrace_engine.engine.session_update import SessionUpdate
from headrace_engine.types import FinishReason, GenerateStatus, PrefixReuse
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from unit.engine.session_bench import SessionBench, Story, rows_of

T = TypeVar("T")

TEXTS = st.lists(st.text(max_size=40), min_size=1, max_size=12)
WINDOWS = st.sampled_from([None, 0, 1, 5, 4096])


@dataclass
class Client:
    """What the client of one channel knows."""

    log: ResultLog
    position: int
    acked: int
    window: int
    opened: int
    attached: bool = False
    status: GenerateStatus | None = None
    prefix: PrefixReuse | None = None
    end: Any = None
    closed: bool = False

    @property
    def limit(self) -> int:
        return self.acked + self.window


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stories: list[Story] = []
        self.clients: dict[int, Client] = {}
        self.next_channel = 1

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(update_bytes=st.sampled_from([100, 700, 5000, 960 * 1024]))
    def open(self, update_bytes: int) -> None:
        async def make() -> SessionBench:
            return SessionBench(update_bytes)

        self.bench = self.do(make())
        self.begin()

    @rule()
    def begin(self) -> None:
        handle = f"h{len(self.stories)}"
        self.stories.append(self.bench.story(handle))

    @rule(number=st.integers(0, 50), texts=TEXTS)
    def say(self, number: int, texts: list[str]) -> None:
        story = self.stories[number % len(self.stories)]
        if story.log.end is None:
            story.say(*texts)

    @rule(number=st.integers(0, 50), reused=st.integers(0, 3))
    def schedule(self, number: int, reused: int) -> None:
        story = self.stories[number % len(self.stories)]
        if story.log.end is None:
            story.log.prefix = PrefixReuse(reused)
            story.log.wake()

    @rule(number=st.integers(0, 50), reason=st.sampled_from(FinishReason), text=st.text(max_size=5))
    def end(self, number: int, reason: FinishReason, text: str) -> None:
        story = self.stories[number % len(self.stories)]
        if story.log.end is None:
            story.end(reason, text)

    @rule(number=st.integers(0, 50), part=st.floats(0, 1), window=WINDOWS)
    def attach(self, number: int, part: float, window: int | None) -> None:
        number %= len(self.stories)
        log = self.stories[number].log
        position = int(part * len(log))
        self.bench.attach(self.next_channel, f"h{number}", at=position, window=window)
        size = 4096 if window is None else window
        self.clients[self.next_channel] = Client(log, position, position, size, size)
        self.next_channel += 1

    def some_channel(self, number: int) -> int:
        return list(self.clients)[number % len(self.clients)]

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 50), part=st.floats(0, 1), window=WINDOWS)
    def ack(self, number: int, part: float, window: int | None) -> None:
        channel = self.some_channel(number)
        client = self.clients[channel]
        client.acked += int(part * (client.position - client.acked))
        client.window = client.opened if window is None else window
        client.opened = client.window or client.opened
        client.closed = client.closed and client.limit <= client.position
        self.bench.ack(client.acked, window, channel=channel)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 50))
    def detach(self, number: int) -> None:
        channel = self.some_channel(number)
        del self.clients[channel]
        self.bench.session.detach(channel)

    @precondition(lambda self: len(self.stories) > 1)
    @rule(number=st.integers(0, 50))
    def release(self, number: int) -> None:
        """The handle is gone at once; the channels hear of it with the next update."""
        number %= len(self.stories)
        story = self.stories[number]
        if story.log.end is not None:
            story.log.release()

    @rule(seconds=st.sampled_from([0.3, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.bench.session.heard()
        self.bench.timers.advance(seconds)

    @rule()
    def drain_some(self) -> None:
        update = self.do(self.bench.poll())
        if update is not None:
            self.take(update)

    @rule()
    def drain_all(self) -> None:
        while (update := self.do(self.bench.poll())) is not None:
            self.take(update)
        self.everything_was_told()

    def take(self, update: SessionUpdate) -> None:
        """Apply an update as a client does, in the order of its fields."""
        for fact in update.attached:
            client = self.clients[fact.channel]
            assert not client.attached
            assert (fact.position, fact.generated_length) == (client.position, len(client.log))
            assert fact.checksum == client.log.checksum_before(client.position)
            client.attached, client.status, client.prefix = True, fact.status, fact.prefix
        for row in rows_of(update.rows):
            self.take_row(row)
        for change in update.statuses:
            client = self.clients[change.channel]
            assert not change.status.terminal
            assert client.end is None
            assert (change.status, change.prefix) != (client.status, client.prefix)
            client.status, client.prefix = change.status, change.prefix
        for ended in update.ends:
            client = self.clients[ended.channel]
            assert client.attached
            assert client.end is None
            client.end = ended.end
            assert ended.end is client.log.end
        for failure in update.errors:
            assert self.clients.pop(failure.channel).log.released
        for window in update.windows:
            self.take_window(window)

    def take_row(self, row: Any) -> None:
        client = self.clients[row.channel]
        assert client.attached
        assert row.position == client.position
        stop = client.position + len(row.ids)
        ids, text, checksum, _ = client.log.columns(client.position, stop)
        assert (tuple(ids), text, checksum) == (row.ids, row.text, row.checksum)
        assert client.position < stop <= client.limit
        client.position = stop

    def take_window(self, state: Any) -> None:
        client = self.clients[state.channel]
        assert state.position == client.position
        assert state.limit == client.position >= client.limit
        assert state.generated_length == len(client.log)
        client.closed = True

    def everything_was_told(self) -> None:
        for client in self.clients.values():
            log = client.log
            assert not log.released
            assert client.attached
            assert client.position >= min(len(log), client.limit)
            assert client.prefix == log.prefix
            assert client.end is log.end
            if log.end is None:
                assert client.status == log.status
            waits = client.position < len(log) or log.end is None
            assert client.closed or client.position < client.limit or not waits

    @invariant()
    def readers_are_counted(self) -> None:
        for story in self.stories:
            assert story.readers <= sum(client.log is story.log for client in self.clients.values())

    def teardown(self) -> None:
        self.drain_all()
        self.bench.session.close()
        assert all(story.readers == 0 for story in self.stories)
        assert self.bench.timers.armed == 0
        self.loop.close()


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
