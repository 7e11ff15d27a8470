"""The gateway's books of sessions under whatever comes in whatever order."""

from __future__ import annotations

import pytest
from headrace_proto.v1 import session_pb2 as wire
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from unit.gateway.sessions.session_plumbing import ENGINES, SMALL, Plumbing, read_all

pytestmark = pytest.mark.timeout(1500)  # All its runs are one test, which a busy machine takes minutes for.


class Sessions(RuleBasedStateMachine):
    """Whatever comes in whatever order: exactly once, in order, bounded, and everything arrives in the end."""

    @initialize(rows=st.integers(1, 7))
    def begin(self, rows):
        self.plumbing = Plumbing(clients=2)
        self.handles = [
            self.plumbing.log(engine, row=rows, logprobs=number == 0) for engine in ENGINES for number in range(2)
        ]

    engines = st.sampled_from(ENGINES)
    clients = st.integers(0, 1)

    @rule(number=st.integers(0, 3), count=st.integers(1, 60))
    def produce(self, number, count):
        log = self.plumbing.logs[self.handles[number]]
        if not log.ended:
            log.tokens += range(len(log.tokens), len(log.tokens) + count)

    @rule(steps=st.integers(1, 12), reader=st.sampled_from([None, 0, 1]))
    def run(self, steps, reader):
        """Engines produce, and all of it comes to the gateway; one client or none reads along."""
        for _ in range(steps):
            for handle in self.handles:
                if not self.plumbing.logs[handle].ended:
                    self.plumbing.logs[handle].tokens.append(len(self.plumbing.logs[handle].tokens))
            self.plumbing.flow()
            if reader is not None:
                self.plumbing.clients[reader].read()

    @rule(number=st.integers(0, 3))
    def finish(self, number):
        self.plumbing.logs[self.handles[number]].ended = True

    @rule(client=clients, number=st.integers(0, 3), window=st.sampled_from([None, 0, 5, 40, 1000]))
    def attach(self, client, number, window):
        self.plumbing.clients[client].attach(self.handles[number], window=window)

    @rule(client=clients, data=st.data())
    def detach(self, client, data):
        reader = self.plumbing.clients[client]
        if reader.readings.of:
            channel = data.draw(st.sampled_from(sorted(reader.readings.of)))
            reader.say(detach=[reader.readings.detach(channel)])

    @rule(client=clients, data=st.data(), window=st.sampled_from([None, 0, 5, 40]))
    def ack(self, client, data, window):
        reader = self.plumbing.clients[client]
        known = [channel for channel, reading in reader.readings.of.items() if not reading.error]
        parked = [channel for channel in known if reader.readings.of[channel].window is not None]
        known = data.draw(st.sampled_from([known, parked]))
        if known:
            reader.ack(data.draw(st.sampled_from(known)), window)

    @rule(client=clients, count=st.integers(1, 5))
    def read(self, client, count):
        for _ in range(count):
            self.plumbing.clients[client].read()

    @rule(name=engines)
    def up(self, name):
        self.plumbing.up(name)

    @rule(name=engines)
    def say(self, name):
        self.plumbing.say(name)

    @rule(name=engines, count=st.integers(1, 3))
    def down(self, name, count):
        for _ in range(count):
            self.plumbing.down(name)

    @rule(name=engines)
    def lose(self, name):
        self.plumbing.lose(name)

    @invariant()
    def is_bounded(self):
        for client in self.plumbing.clients:
            assert 0 <= client.channels.outbox.held <= SMALL.held_bytes
            assert all(size <= SMALL.message_bytes for size in client.readings.sizes)

    def teardown(self):
        if not hasattr(self, "plumbing"):
            return
        for log in self.plumbing.logs.values():
            log.ended = True
        for client in self.plumbing.clients:
            while client.read():
                pass
            for channel, reading in client.readings.of.items():
                if reading.error is None:
                    client.say(acks=[wire.Ack(channel=channel, position=reading.position, window=50)])
        read_all(self.plumbing)
        for client in self.plumbing.clients:
            for reading in client.readings.of.values():
                if reading.error is None:
                    assert reading.whole
                    assert reading.tokens == self.plumbing.logs[reading.handle].tokens
                    if self.plumbing.logs[reading.handle].logprobs:
                        assert reading.logprobs == [-float(token) for token in reading.tokens]
            assert client.channels.done
            assert client.channels.outbox.held == 0


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
