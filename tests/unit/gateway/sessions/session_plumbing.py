"""The gateway's books of sessions between honest engines and strict clients; messages move only when told to."""

from __future__ import annotations

from collections import deque

from headrace_gateway import status
from headrace_gateway.forwarding.handles import Handle
from headrace_gateway.sessions.client_channels import ClientChannels
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.upstream_channels import UpstreamChannels
from headrace_proto.v1 import session_pb2 as wire
from support.scripted.session_engine import EngineSide, Log
from unit.gateway.sessions.session_reading import Readings

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
        self.upstreams[name] = UpstreamChannels(name, self.limits.message_bytes, lambda: None)
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
        if (text := self.engines[name].say()) is not None:
            self.from_engine[name].append(text.SerializeToString())

    def down(self, name):
        if self.from_engine[name]:
            self.upstreams[name].deliver(wire.SessionResponse.FromString(self.from_engine[name].popleft()))

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
        self.channels = ClientChannels(plumbing.route, plumbing.limits, lambda: None)
        self.readings = Readings()
        self.channels.outbox.put_opened(wire.SessionOpened(server="gateway"))

    def say(self, **fields):
        self.channels.apply(wire.SessionRequest.FromString(wire.SessionRequest(**fields).SerializeToString()))

    def attach(self, handle, **more):
        attach = self.readings.attach(handle, **more)
        self.say(attach=[attach])
        return attach.channel

    def read(self):
        """Reads one message; tells whether there was one."""
        message = self.channels.outbox.take()
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
