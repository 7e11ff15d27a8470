"""Whatever happens in whatever order: each channel tells its log, from its position on, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.sessions.session_update import SessionUpdate
from headrace_engine.result_types import FinishReason, GenerateStatus, PrefixReuse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.session_rig import SessionRig, Story, rows_of


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


class World:
    """Requests that run, a client that reads them, and everything that may happen to both."""

    def __init__(self, random: Random, update_bytes: int) -> None:
        self.random = random
        self.rig = SessionRig(update_bytes)
        self.stories: list[Story] = []
        self.clients: dict[int, Client] = {}
        self.next_channel = 1
        self.begin()

    async def step(self) -> None:
        """One thing happens."""
        happen = [self.say] * 6 + [self.attach, self.ack] * 3 + [self.begin, self.schedule, self.end, self.wake]
        happen += [self.detach, self.release, self.pass_time]
        choice = self.random.randrange(len(happen) + 6)
        if choice < len(happen):
            happen[choice]()
        elif choice < len(happen) + 4:
            await self.drain_some()
        else:
            await self.drain_all()

    def some_story(self) -> Story:
        return self.random.choice(self.stories)

    def begin(self) -> None:
        if sum(story.log.end is None for story in self.stories) < 3:
            self.stories.append(self.rig.story(f"h{len(self.stories)}"))

    def say(self) -> None:
        story = self.some_story()
        if story.log.end is None:
            story.say(*["ü" * self.random.randrange(20) for _ in range(self.random.randrange(1, 12))])

    def schedule(self) -> None:
        story = self.some_story()
        if story.log.end is None:
            story.log.contents.prefix = PrefixReuse(self.random.randrange(3))
            story.log.wake()

    def end(self) -> None:
        story = self.some_story()
        if story.log.end is None:
            story.end(self.random.choice(list(FinishReason)), self.random.choice(["", "rest"]))

    def wake(self) -> None:
        """For no reason."""
        self.some_story().log.wake()

    def attach(self) -> None:
        if len(self.clients) > 6:
            return
        number = self.random.randrange(len(self.stories))
        log = self.stories[number].log
        position = self.random.randrange(len(log) + 1)
        window = self.random.choice([None, 0, 1, 5, 4096])
        self.rig.attach(self.next_channel, f"h{number}", at=position, window=window)
        size = 4096 if window is None else window
        self.clients[self.next_channel] = Client(log, position, position, size, size)
        self.next_channel += 1

    def ack(self) -> None:
        if not self.clients:
            return
        channel, client = self.random.choice(list(self.clients.items()))
        client.acked = self.random.randint(client.acked, client.position)
        window = self.random.choice([None, None, 0, 1, 5, 4096])
        client.window = client.opened if window is None else window
        client.opened = client.window or client.opened
        client.closed = client.closed and client.limit <= client.position
        self.rig.ack(client.acked, window, channel=channel)

    def detach(self) -> None:
        if self.clients:
            channel = self.random.choice(list(self.clients))
            del self.clients[channel]
            self.rig.session.detach(channel)

    def release(self) -> None:
        """The handle is gone at once; the channels hear of it with the next update."""
        story = self.some_story()
        if story.log.end is not None:
            story.log.release()

    def pass_time(self) -> None:
        self.rig.session.heard()
        self.rig.timers.advance(self.random.choice([0.3, 1.0]))

    async def drain_some(self) -> None:
        update = await self.rig.poll()
        if update is not None:
            self.take(update)

    async def drain_all(self) -> None:
        for _ in range(10_000):
            update = await self.rig.poll()
            if update is None:
                break
            self.take(update)
        assert update is None, "there is no end of news"
        self.everything_was_sent()

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
        ids, text, checksum, _ = client.log.contents.columns(client.position, stop)
        assert (tuple(ids), text, checksum) == (row.ids, row.text, row.checksum)
        assert client.position < stop <= client.limit
        client.position = stop

    def take_window(self, state: Any) -> None:
        client = self.clients[state.channel]
        assert state.position == client.position
        assert state.limit == client.position >= client.limit
        assert state.generated_length == len(client.log)
        client.closed = True

    def everything_was_sent(self) -> None:
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

    async def finish(self) -> None:
        """Everything is told, and then everything given back."""
        await self.drain_all()
        alive = [client for client in self.clients.values() if not client.log.released]
        assert sum(story.readers for story in self.stories) == len(alive)
        self.rig.session.close()
        assert all(story.readers == 0 for story in self.stories)
        assert self.rig.timers.armed == 0


@given(seed=st.integers(0, 2**32), update_bytes=st.sampled_from([100, 700, 5000, 960 * 1024]))
@settings(max_examples=40, deadline=None)
def test_each_channel_tells_its_log_whatever_happens(seed: int, update_bytes: int) -> None:
    async def play() -> None:
        world = World(Random(seed), update_bytes)
        for _ in range(250):
            await world.step()
        await world.finish()

    asyncio.run(play())
