"""Client, gateway and engine together: whatever breaks, each queue gets its log once, in order, and to its end."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.client.streaming.session_caller import WINDOW, Caller
from unit.session_chain import ENGINES, LIMITS, Chain, Client, EngineLink, ids_and_text

PER_ENGINE = 4
MOST = 100
"""Tokens that a log gets, about."""


class Adversary:
    """Lets anything happen in any order, and checks what must hold all the time and what must hold in the end."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.chain = Chain(clients=2)
        self.handles = [self.chain.story(engine) for engine in ENGINES for _ in range(PER_ENGINE)]
        for client in self.chain.clients:
            for handle in self.handles:
                client.read(handle)

    @property
    def callers(self) -> list[tuple[Caller, str]]:
        return [pair for client in self.chain.clients for pair in client.callers.items()]

    async def step(self) -> None:
        happen = [self.say, self.exchange, self.read, self.get] * 6 + [self.client_moves, self.link_moves] * 12
        happen += [self.open, self.flood] * 4 + [self.cut, self.lose_stream, self.pass_time, self.end, self.drop]
        happen += [self.lose_gateway] * (self.random.random() < 0.3)
        outcome = self.random.choice(happen)()
        if outcome is not None:
            await outcome
        self.check()

    def some_client(self) -> Client:
        return self.random.choice(self.chain.clients)

    def some_link(self) -> EngineLink:
        return self.chain.links[self.random.choice(ENGINES)]

    def some_caller(self) -> Caller:
        return self.random.choice(self.callers)[0]

    def say(self) -> None:
        story = self.chain.stories[self.random.choice(self.handles)]
        if story.log.end is None and len(story.log) < MOST:
            story.say(*["ü" * self.random.randrange(6) for _ in range(self.random.randrange(1, 20))])

    def end(self) -> None:
        story = self.chain.stories[self.random.choice(self.handles)]
        if story.log.end is None and self.random.random() < 0.3:
            story.end(text=self.random.choice(["", "rest"]))

    def open(self) -> None:
        self.some_client().open()

    def cut(self) -> None:
        self.some_client().cut()

    def lose_stream(self) -> None:
        self.chain.lose_stream(self.random.choice(ENGINES))

    def lose_gateway(self) -> None:
        self.chain.lose_gateway()

    def pass_time(self) -> None:
        self.chain.pass_time(self.random.choice([0.01, 0.5, 3.0]))

    def client_moves(self) -> None:
        client = self.some_client()
        self.random.choice([client.speaks, client.gateway_hears, client.gateway_speaks, client.hears])()

    async def link_moves(self) -> None:
        link = self.some_link()
        if self.random.random() < 0.25:
            await link.engine_speaks()
        else:
            self.random.choice([link.gateway_speaks, link.engine_hears, link.gateway_hears])()

    async def exchange(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            await self.chain.move()

    async def flood(self) -> None:
        """More than the clients take."""
        for _ in range(self.random.randrange(3, 20)):
            self.say()
            await self.chain.move_links()

    def read(self) -> None:
        self.some_caller().read()

    def get(self) -> None:
        self.some_caller().begin_get()

    def drop(self) -> None:
        caller = self.some_caller()
        if caller.waits is None and self.random.random() < 0.2:
            caller.drop()

    def check(self) -> None:
        """Nothing is lost, nothing comes twice, nothing piles up."""
        for caller, handle in self.callers:
            ids, text = ids_and_text(self.chain.stories[handle])
            assert caller.ids == ids[: len(caller.ids)]
            assert text.startswith(caller.text)
            assert caller.waits is not None or caller.reader.position - len(caller.ids) <= WINDOW
        for client in self.chain.clients:
            assert client.channels is None or client.channels.outbox.held <= LIMITS.held_bytes

    async def finish(self) -> None:
        """Nothing breaks any more: everybody who reads gets everything, and nothing is held for anybody."""
        for handle in self.handles:
            if self.chain.stories[handle].log.end is None:
                self.chain.stories[handle].end()
        for client in self.chain.clients:
            client.open()
        idle = 0
        for _ in range(20_000):
            begun = [caller.get_again() for caller, _ in self.callers]
            moved = await self.chain.move() or any(begun)
            idle = 0 if moved else idle + 1
            if idle == 3:
                break
            if not moved:
                self.chain.pass_time(30.0)
        assert idle == 3, "there is no end of messages"
        self.check()
        for caller, handle in self.callers:
            if not caller.gone:
                assert caller.reader.settled
                assert (caller.ids, caller.text) == ids_and_text(self.chain.stories[handle])
        assert all(client.session.subscriptions == [] for client in self.chain.clients)
        assert all(client.channels is not None and client.channels.outbox.held == 0 for client in self.chain.clients)
        assert all(link.channels.readers == 0 for link in self.chain.links.values())
        assert all(story.readers == 0 for story in self.chain.stories.values())


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_every_queue_gets_its_log_whatever_breaks(seed: int) -> None:
    async def play() -> None:
        adversary = Adversary(Random(seed))
        for _ in range(250):
            await adversary.step()
        await adversary.finish()

    asyncio.run(play())
