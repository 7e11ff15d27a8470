"""All sessions of clients, in front of one stream to each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from google.protobuf.duration_pb2 import Duration
from headrace_proto.server.interceptor import Context
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway.access.uses import OwnerUses
from headrace_gateway.engines.engine import Engine
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.sessions.attach_pace import AttachPaces
from headrace_gateway.sessions.client_session import ClientSession
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.upstream import EngineLinks


class Sessions:
    """Opens, follows and closes the sessions of clients.

    A draining gateway refuses new sessions. Open ones go on, and may attach, since they are the only way to results
    still to come. Each gets `closing` once everything of all its channels was delivered, and ends with DRAINING when
    its client has half-closed.

    Args:
        name: of the gateway.
        instance_id: random id of this run of the gateway.
        find: returns the engine that a handle names; raises CallError if there is none.
        calls: knows whether the gateway drains.
        limits: of each session.
        uses: takes what engines report of owners.

    Attributes:
        live: the open sessions.
    """

    def __init__(
        self,
        name: str,
        instance_id: str,
        find: Callable[[str], Engine],
        calls: LiveCalls,
        limits: SessionLimits,
        uses: OwnerUses,
    ) -> None:
        self.live: set[ClientSession] = set()
        self._opened = wire.SessionOpened(
            server=name,
            instance_id=instance_id,
            ping_interval=_duration(limits.ping_interval),
            ping_timeout=_duration(limits.ping_timeout),
        )
        self._links = EngineLinks(find, limits, uses)
        self._calls = calls
        self._limits = limits
        self._paces = AttachPaces()
        calls.on_drain.append(self._wake_writers)

    def follow(self, engine: Engine) -> None:
        """Open a stream to an engine as soon as it can be reached."""
        self._links.follow(engine)

    async def leave(self, engine: Engine) -> None:
        """Close the stream to an engine; its readers fail."""
        await self._links.leave(engine)

    async def serve(self, requests: AsyncIterator[wire.SessionRequest], context: Context) -> None:
        """Serve one session to its end.

        Raises:
            CallError: the client's error, or DRAINING.
        """
        self._calls.refuse_if_draining()
        with self._paces.of(context.peer()) as pace:
            session = ClientSession(self._links, self._limits, self._calls, pace)
            self.live.add(session)
            try:
                await session.run(requests, context, self._opened)
            finally:
                self.live.remove(session)

    async def close(self) -> None:
        """Close the streams to the engines."""
        await self._links.close()

    def _wake_writers(self) -> None:
        for session in self.live:
            session.more.set()


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration
