"""The gateway's books of sessions, without input or output, against honest engines and strict clients."""

from __future__ import annotations

from collections import deque

import pytest
from headrace.v1 import session_pb2 as wire
from headrace_gateway import status
from headrace_gateway.client_book import ClientBook
from headrace_gateway.routing import Handle
from headrace_gateway.session_limits import SessionLimits
from headrace_gateway.status import CallError
from headrace_gateway.upstream_book import UpstreamBook
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from unit.gateway.session_engine import EngineSide, Log
from unit.gateway.session_reading import Readings

SMALL = SessionLimits(held_bytes=500, message_bytes=600)
ENGINES = ("e1", "e2")


class Plumbing:
    """Engines, the gateway's books and clients; messages on their way move only when told to."""

    def __init__(self, clients=2, limits=SMALL):
        self.limits = limits
        self.logs = {}
        self.upstreams, self.engines, self.from_engine = {}, {}, {}
        for name in ENGINES:
            self.connect(name)
        self.clients = [Client(self) for _ in range(clients)]

    def connect(self, name):
        """A new stream to an engine; an old one is forgotten."""
        self.upstreams[name] = UpstreamBook(name, self.limits.message_bytes, lambda: None)
        self.engines[name] = EngineSide(self.find)
        self.engines[name].hear(wire.SessionRequest(options=wire.SessionOptions()))
        self.from_engine[name] = deque()

    def log(self, engine="e1", **more):
        handle = f"{engine}/x/{len(self.logs)}"
        self.logs[handle] = Log(**more)
        return handle

    def find(self, handle, index):
        return self.logs.get(handle, "UNKNOWN_REQUEST")

    def route(self, handle):
        name = Handle.parse(handle).engine
        if name not in self.upstreams:
            raise status.unknown_engine(name, list(self.upstreams))
        return self.upstreams[name]

    def lose(self, name):
        old = self.upstreams[name]
        self.connect(name)
        old.fail(status.engine_unreachable(name, reached=True).status)

    def up(self, name):
        while (request := self.upstreams[name].take()) is not None:
            self.engines[name].hear(request)

    def say(self, name):
        if (said := self.engines[name].say()) is not None:
            self.from_engine[name].append(said.SerializeToString())

    def down(self, name):
        if self.from_engine[name]:
            self.upstreams[name].hear(wire.SessionResponse.FromString(self.from_engine[name].popleft()))

    def flow(self):
        """Moves everything between gateway and engines until nothing moves; the clients read nothing."""
        for name in ENGINES:
            moved = True
            while moved:
                self.up(name)
                self.say(name)
                moved = bool(self.from_engine[name])
                while self.from_engine[name]:
                    self.down(name)


class Client:
    """One client's session."""

    def __init__(self, plumbing):
        self.book = ClientBook(plumbing.route, plumbing.limits, lambda: None)
        self.readings = Readings()
        self.book.outbox.put_opened(wire.SessionOpened(server="gateway"))

    def say(self, **fields):
        self.book.hear(wire.SessionRequest.FromString(wire.SessionRequest(**fields).SerializeToString()))

    def attach(self, handle, **more):
        attach = self.readings.attach(handle, **more)
        self.say(attach=[attach])
        return attach.channel

    def read(self):
        """Reads one message; tells whether there was one."""
        message = self.book.outbox.take()
        if message is not None:
            self.readings.take(wire.SessionResponse.FromString(message.SerializeToString()))
        return message is not None

    def ack(self, channel, window=None):
        position = self.readings.of[channel].position
        self.say(acks=[wire.Ack(channel=channel, position=position, window=window)])

    def __getitem__(self, channel):
        return self.readings.of[channel]


def read_all(plumbing):
    """Clients read and acknowledge until nothing is new."""
    idle = 0
    while idle < 2:
        plumbing.flow()
        idle += 1
        for client in plumbing.clients:
            while client.read():
                idle = 0
            for channel, reading in client.readings.of.items():
                if reading.error is None and reading.attached and not reading.whole:
                    client.ack(channel, window=None if reading.window is None else 8)


def test_a_step_becomes_one_message_a_client():
    """Rows of one engine's step are grouped by client, under each client's own channels."""
    plumbing = Plumbing()
    one, two = plumbing.clients
    handles = [plumbing.log(tokens=[number]) for number in range(6)]
    for number, handle in enumerate(handles):
        plumbing.clients[number % 2].attach(handle)
    plumbing.flow()
    assert one.read()
    assert not one.read()
    assert two.read()
    assert [one[channel].tokens for channel in (1, 2, 3)] == [[0], [2], [4]]
    assert [two[channel].tokens for channel in (1, 2, 3)] == [[1], [3], [5]]


def test_details_follow_their_rows():
    """Log-probabilities stay with their tokens when rows are regrouped, and when they waited."""
    plumbing = Plumbing(limits=SessionLimits())
    one, two = plumbing.clients
    plain, rich = plumbing.log(tokens=[1, 2, 3]), plumbing.log(tokens=[4, 5, 6, 7, 8, 9], logprobs=True)
    one.attach(plain)
    for client in (one, two):
        client.attach(rich)
    plumbing.flow()
    plumbing.logs[rich].tokens += [10, 11]
    plumbing.flow()
    while one.read() or two.read():
        pass
    assert one[2].logprobs == two[1].logprobs == [-float(token) for token in range(4, 12)]
    assert one[1].logprobs == []


def test_a_slow_client_is_parked_and_others_are_not():
    """What does not fit is dropped and its window closed; later it goes on from there, once and in order."""
    plumbing = Plumbing()
    slow, quick = plumbing.clients
    handle = plumbing.log()
    for client in (slow, quick):
        client.attach(handle, window=100_000)
    log = plumbing.logs[handle]
    for token in range(500):
        log.tokens.append(token)
        plumbing.flow()
        while quick.read():
            pass
        assert slow.book.outbox.held <= SMALL.held_bytes
    assert quick[1].tokens == log.tokens
    assert sorted(channel.window for channel in plumbing.engines["e1"].channels.values()) == [0, 100_000]
    while slow.read():
        pass
    assert slow[1].window.position == slow[1].window.limit == slow[1].position < 500
    log.ended = True
    read_all(plumbing)
    assert slow[1].tokens == quick[1].tokens == log.tokens
    assert slow[1].whole


def test_a_parked_client_is_told_the_status_and_the_end():
    """Statuses and ends come whatever was dropped, and each once."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    handle = plumbing.log()
    client.attach(handle, window=100_000)
    plumbing.flow()
    plumbing.logs[handle].tokens += range(1000)
    plumbing.flow()
    plumbing.logs[handle].ended = True
    plumbing.flow()
    while client.read():
        pass
    assert client[1].end.position == 1000
    assert not client[1].whole
    assert client[1].statuses == [3]
    read_all(plumbing)
    assert client[1].tokens == list(range(1000))
    assert client[1].statuses == [3]


def test_the_heaviest_are_dropped_first():
    """A short answer beside a long one is not touched."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    short, long = plumbing.log(tokens=[1, 2]), plumbing.log()
    client.attach(short)
    client.attach(long, window=100_000)
    plumbing.flow()
    plumbing.logs[long].tokens += range(1000)
    plumbing.flow()
    assert [channel.window for channel in plumbing.engines["e1"].channels.values()] == [4096, 0]


def test_an_ack_opens_what_the_client_closed():
    """A window acknowledged as 0 opens as it was; one attached as 0 stays, until the client says otherwise."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    handle = plumbing.log(tokens=[1, 2, 3])
    client.attach(handle, window=0)
    client.say(acks=[wire.Ack(channel=1)])
    plumbing.flow()
    client.read()
    assert client[1].tokens == []
    client.say(acks=[wire.Ack(channel=1, window=2)])
    client.say(acks=[wire.Ack(channel=1, window=0)])
    client.say(acks=[wire.Ack(channel=1)])
    plumbing.flow()
    client.read()
    assert client[1].tokens == [1, 2]


def test_a_lost_engine_ends_its_channels_only():
    """Each of them with a HandleError under the client's own handle; what had come is told before."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    lost, kept = plumbing.log("e1", tokens=[1, 2]), plumbing.log("e2", tokens=[3])
    client.attach(lost)
    client.attach(kept)
    plumbing.flow()
    plumbing.lose("e1")
    plumbing.logs[kept].tokens.append(4)
    plumbing.flow()
    while client.read():
        pass
    assert client[1].tokens == [1, 2]
    assert CallError(client[1].error).reason == "ENGINE_UNREACHABLE"
    assert (client[2].tokens, client[2].error) == ([3, 4], None)


def test_a_detach_is_heard_by_the_engine_and_frees_what_waits():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    handle = plumbing.log(tokens=list(range(20)))
    client.attach(handle)
    plumbing.flow()
    plumbing.logs[handle].tokens += range(20)
    plumbing.flow()
    assert client.book.outbox.held
    client.say(detach=[client.readings.detach(1), 77])
    plumbing.flow()
    assert plumbing.engines["e1"].detached == [1]
    assert client.book.outbox.held == 0


def test_an_engine_that_is_out_of_step_ends_that_reader_only():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    for _ in range(2):
        client.attach(plumbing.log(tokens=[1]))
    plumbing.flow()
    step = wire.StepBatch(
        channels=[1, 2], positions=[5, 1], counts=[1, 1], token_ids=[9, 9], texts=["<9>"] * 2, checksums=[0, 0]
    )
    client.readings.of[2].start = 0
    plumbing.upstreams["e1"].hear(wire.SessionResponse(step=step))
    message = client.book.outbox.take()
    while message is not None and not message.errors:
        message = client.book.outbox.take()
    assert [error.channel for error in message.errors] == [1]
    assert client.book.channels == 1


def test_columns_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        Plumbing().upstreams["e1"].hear(wire.SessionResponse(step=wire.StepBatch(channels=[1], counts=[1])))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"attach": [wire.Attach(handle="e1/x/0")]}, "attach[0].channel"),
        ({"attach": [wire.Attach(channel=1, handle="e1/x/0")] * 2}, "attach[1].channel"),
        ({"attach": [wire.Attach(channel=1, handle="é" * 600)]}, "attach[0].handle"),
        (
            {"attach": [wire.Attach(channel=1, handle="e1/x/0", from_position=2)], "acks": [wire.Ack(channel=1)]},
            "acks[0].position",
        ),
        (
            {"attach": [wire.Attach(channel=1, handle="e1/x/0")], "acks": [wire.Ack(channel=1, position=9)]},
            "acks[0].position",
        ),
    ],
)
def test_what_breaks_the_rules_is_refused_with_its_field(message, field):
    with pytest.raises(CallError) as caught:
        Plumbing().clients[0].say(**message)
    assert caught.value.status.message.startswith(field)


def test_unroutable_handles_are_items_and_touch_no_other():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    for handle in ("no handle", "e9/x/1", "e1/x/99", plumbing.log(tokens=[7])):
        client.attach(handle)
    plumbing.flow()
    while client.read():
        pass
    reasons = [CallError(client[channel].error).reason for channel in (1, 2, 3)]
    assert reasons == ["UNKNOWN_REQUEST", "UNKNOWN_ENGINE", "UNKNOWN_REQUEST"]
    assert client[4].tokens == [7]


def test_a_client_that_only_attaches_nonsense_is_read_no_further():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    for _ in range(4097):
        client.attach("nonsense")
    assert client.book.crowded
    while client.read():
        pass
    assert not client.book.crowded


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
            assert 0 <= client.book.outbox.held <= SMALL.held_bytes
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
            assert client.book.done
            assert client.book.outbox.held == 0


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
