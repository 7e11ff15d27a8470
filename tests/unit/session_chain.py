"""Clients, a gateway and engines, wired together in memory: their real session code, and nothing of gRPC.

What is on its way between two of them lies in a queue, as bytes, until the test moves it or loses it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from headrace import UnavailableError
from headrace._base.retry import RetryPolicy
from headrace._streaming.recovery import Recovery
from headrace._streaming.session import ClientSession
from headrace_engine.service.convert.session import apply, session_response
from headrace_gateway import status
from headrace_gateway.forwarding.handles import Handle
from headrace_gateway.sessions.client_channels import ClientChannels
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.upstream_channels import UpstreamChannels
from headrace_proto.pure.limits import PING_TIMEOUT
from headrace_proto.v1 import session_pb2 as wire
from support.clocks.client_clock import FakeClock
from support.engine.session_rig import SessionRig, Story
from unit.client.streaming.session_caller import Caller

LIMITS = SessionLimits(held_bytes=300, message_bytes=400)
ENGINES = ("e1", "e2")
NEVER = 10**6
"""Seconds between pings: what goes on must not wait for one."""


class EngineLink:
    """One stream between the gateway and an engine."""

    def __init__(self, name: str, stories: dict[str, Story]) -> None:
        self.name = name
        self.channels = UpstreamChannels(name, LIMITS.message_bytes, lambda: None)
        self.rig = SessionRig(80, stories)
        self.rig.session.open(load=False)
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()

    def gateway_speaks(self) -> bool:
        """Whether it had something to say."""
        request = self.channels.take()
        if request is not None:
            self.up.append(request.SerializeToString())
        return request is not None

    def engine_hears(self) -> bool:
        """Whether a message arrived there."""
        if not self.up:
            return False
        self.rig.session.heard()
        apply(wire.SessionRequest.FromString(self.up.popleft()), self.rig.session)
        return True

    async def engine_speaks(self) -> bool:
        """Whether it had news."""
        update = await self.rig.poll()
        if update is not None:
            self.down.append(session_response(update, self.name, "x").SerializeToString())
        return update is not None

    def gateway_hears(self) -> bool:
        """Whether a message arrived there."""
        if not self.down:
            return False
        self.channels.deliver(wire.SessionResponse.FromString(self.down.popleft()))
        return True

    def pass_time(self, seconds: float) -> None:
        """Time passes for the engine, to which pings come in time."""
        for _ in range(int(seconds // (PING_TIMEOUT / 2)) + 1):
            self.rig.session.heard()
            self.rig.timers.advance(min(seconds, PING_TIMEOUT / 2))

    def cut(self) -> None:
        """The stream breaks: the engine gives back what it holds for it, and the gateway's readers hear of it."""
        self.rig.session.close()
        self.channels.fail(status.engine_unreachable(self.name, reached=True).status)


class Client:
    """A client's session, its stream to the gateway, and those who read."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.session = ClientSession(_patient(chain.clock), chain.clock, client="test")
        self.callers: dict[Caller, str] = {}
        self.channels: ClientChannels | None = None
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()

    def read(self, handle: str) -> None:
        """One more queue."""
        self.callers[Caller(self.session, self.chain.clock, handle)] = handle

    def open(self) -> None:
        """Opens a stream, unless there is one."""
        if self.channels is None:
            self.channels = ClientChannels(self.chain.route, LIMITS, lambda: None)
            opened = wire.SessionOpened(server="gateway")
            opened.ping_interval.FromSeconds(NEVER)
            opened.ping_timeout.FromSeconds(NEVER)
            self.channels.outbox.put_opened(opened)
            self.session.open()

    def cut(self) -> None:
        """The stream breaks, and all that is on its way is lost."""
        if self.channels is not None:
            self.channels.close()
            self.channels = None
            self.up.clear()
            self.down.clear()
            delay = self.session.broken(UnavailableError("cut."))
            assert delay is not None
            self.chain.clock.advance(delay)

    def speaks(self) -> bool:
        """Whether it had something to say."""
        message = self.session.outgoing() if self.channels is not None else None
        if message is not None:
            self.up.append(message.SerializeToString())
        return message is not None

    def gateway_hears(self) -> bool:
        """Whether a message arrived there."""
        if self.channels is None or not self.up:
            return False
        self.channels.apply(wire.SessionRequest.FromString(self.up.popleft()))
        return True

    def gateway_speaks(self) -> bool:
        """Whether there was something to send."""
        message = self.channels.outbox.take() if self.channels is not None else None
        if message is not None:
            self.down.append(message.SerializeToString())
        return message is not None

    def hears(self) -> bool:
        """Whether a message arrived here."""
        if not self.down:
            return False
        self.session.receive(wire.SessionResponse.FromString(self.down.popleft()))
        return True


class Chain:
    """All of it."""

    def __init__(self, clients: int) -> None:
        self.clock = FakeClock()
        self.stories: dict[str, Story] = {}
        self.links = {name: EngineLink(name, self.stories) for name in ENGINES}
        self.clients = [Client(self) for _ in range(clients)]

    def story(self, engine: str) -> str:
        """A new sequence; its handle."""
        handle = f"{engine}/x/{len(self.stories)}"
        self.stories[handle] = Story()
        return handle

    def route(self, handle: str) -> UpstreamChannels:
        """Where a handle is read."""
        return self.links[Handle.parse(handle).engine].channels

    def lose_stream(self, engine: str) -> None:
        """The stream between gateway and engine breaks; there is another one at once."""
        old, self.links[engine] = self.links[engine], EngineLink(engine, self.stories)
        old.cut()

    def lose_gateway(self) -> None:
        """The gateway is killed, and another one stands in its place."""
        for link in self.links.values():
            link.rig.session.close()
        self.links = {name: EngineLink(name, self.stories) for name in ENGINES}
        for client in self.clients:
            client.cut()

    async def move_links(self) -> bool:
        """Whether anything moved when the gateway and the engines spoke and heard once."""
        moved = False
        for link in self.links.values():
            moved |= link.gateway_speaks() | link.engine_hears() | await link.engine_speaks() | link.gateway_hears()
        return moved

    async def move(self) -> bool:
        """Whether anything moved when everybody spoke and heard once."""
        moved = False
        for client in self.clients:
            moved |= client.speaks() | client.gateway_hears()
        moved |= await self.move_links()
        for client in self.clients:
            moved |= client.gateway_speaks() | client.hears()
        return moved

    def pass_time(self, seconds: float) -> None:
        """For everybody."""
        self.clock.advance(seconds)
        for link in self.links.values():
            link.pass_time(seconds)


def ids_and_text(story: Story) -> tuple[list[int], str]:
    """All that the log of a story holds, with the text of its end."""
    rest = story.log.end.text if story.log.end else ""
    if not len(story.log):
        return [], rest
    ids, text, _, _ = story.log.contents.columns(0, len(story.log))
    return list(ids), text + rest


def _patient(clock: Any) -> Recovery:
    return Recovery(RetryPolicy(give_up_after=1e9), clock)
