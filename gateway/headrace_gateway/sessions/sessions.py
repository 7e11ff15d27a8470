"""Session streams of clients: read, passed on, written, and ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from weakref import WeakValueDictionary

import structlog
from google.protobuf.duration_pb2 import Duration
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway import status
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.forwarding.forward import Context
from headrace_gateway.sessions.attach_pace import AttachPace
from headrace_gateway.sessions.client_channels import ClientBook
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.upstream import EngineLinks

log = structlog.get_logger()


class Sessions:
    """All sessions of clients, in front of one stream to each engine.

    A gateway that drains takes no new sessions. Those that it has go on, with new attaches too, since they are the only
    way to results that are still to come; each ends with DRAINING once it has delivered everything of all its channels,
    and its client, told that this was all, has ended its half.

    Args:
        name: of the gateway.
        instance_id: of this start of it.
        find: the engine that a handle names; raises CallError if there is none.
        calls: knows whether the gateway drains.
        limits: of each session.

    Attributes:
        live: the sessions there are.
    """

    def __init__(
        self, name: str, instance_id: str, find: Callable[[str], Engine], calls: LiveCalls, limits: SessionLimits
    ) -> None:
        self.live: set[ClientSession] = set()
        self._opened = wire.SessionOpened(
            server=name,
            instance_id=instance_id,
            ping_interval=_duration(limits.ping_interval),
            ping_timeout=_duration(limits.ping_timeout),
        )
        self._links = EngineLinks(find, limits)
        self._calls = calls
        self._limits = limits
        self._paces: WeakValueDictionary[str, AttachPace] = WeakValueDictionary()
        calls.on_drain.append(self._look_up)

    def start(self, engines: Iterable[Engine]) -> None:
        """Begins to follow the engines."""
        self._links.start(engines)

    async def serve(self, requests: AsyncIterator[wire.SessionRequest], context: Context) -> None:
        """Serves one session to its end.

        Raises:
            CallError: what the client did wrong, or DRAINING.
        """
        self._calls.refuse_if_draining()
        pace = self._paces.setdefault(context.peer(), AttachPace())
        session = ClientSession(self._links, self._limits, self._calls, pace)
        self.live.add(session)
        try:
            await session.run(requests, context, self._opened)
        finally:
            self.live.remove(session)

    async def close(self) -> None:
        """Ends the streams to the engines."""
        await self._links.close()

    def _look_up(self) -> None:
        for session in self.live:
            session.more.set()


class ClientSession:
    """One client's session: a task that reads and a task that writes, with the books between them.

    Args:
        links: the streams to the engines.
        limits: of the session.
        calls: knows whether the gateway drains.
        pace: of the attaches of its connection.

    Attributes:
        book: its books.
        more: set when the writer should look.
    """

    def __init__(self, links: EngineLinks, limits: SessionLimits, calls: LiveCalls, pace: AttachPace) -> None:
        self.more = asyncio.Event()
        self.book = ClientBook(links.of_handle, limits, self.more.set)
        self._limits = limits
        self._calls = calls
        self._pace = pace
        self._paid = 0
        self._taken = asyncio.Event()
        self._over = self._ending = False

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that wait for the client."""
        return self.book.outbox.held

    async def run(
        self, requests: AsyncIterator[wire.SessionRequest], context: Context, opened: wire.SessionOpened
    ) -> None:
        """Serves until the client has enough, is silent for too long, or breaks the rules.

        Raises:
            CallError: what the client did wrong, or DRAINING.
        """
        first = _checked(await self._heard(requests))
        facts = {"client": status.shown(first.options.client), "peer": context.peer()}
        log.info("session_opened", **facts)
        # A session may end while a message is on its way, but gRPC cannot end one whose first message is.
        await context.send_initial_metadata(())
        self.book.outbox.put_opened(opened)
        reading = asyncio.create_task(self._read(first, requests))
        writing = asyncio.create_task(self._write(context))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            await self._let_go()
            self._end()
            if reading.done() and reading.exception() is None:  # what was asked for until then is still told
                await asyncio.wait((writing,), timeout=self._limits.ping_timeout)
        finally:
            try:
                await _cancel(reading, writing)
                await self._let_go()
            finally:
                self._end()
                log.info("session_closed", **facts)
        for task in (reading, writing):
            if not task.cancelled():
                task.result()

    async def _let_go(self) -> None:
        """Detaches all channels, some at a time."""
        for _ in self.book.close_in_portions():
            await asyncio.sleep(0)

    def _end(self) -> None:
        """Nobody reads any more; the writer stops when nothing waits."""
        self._over = True
        self.book.close()
        self.more.set()

    async def _heard(self, requests: AsyncIterator[wire.SessionRequest]) -> wire.SessionRequest | None:
        try:
            async with asyncio.timeout(self._limits.ping_timeout):
                return await anext(requests, None)
        except TimeoutError:
            raise status.silent_session(self._limits.ping_interval, self._limits.ping_timeout) from None

    async def _read(self, first: wire.SessionRequest, requests: AsyncIterator[wire.SessionRequest]) -> None:
        """Does what the client says, until it has no more to say."""
        request: wire.SessionRequest | None = first
        while request is not None:
            for _ in self.book.hear_in_portions(request):
                await self._give_way()
            await self._give_way()
            request = await self._heard(requests)
            if request is not None and request.HasField("options"):
                raise status.invalid_field("options", "is set; only the first message of a session may have it")

    async def _give_way(self) -> None:
        """Lets others have a turn, and waits after more attaches than the connection may send so fast."""
        await self._no_crowd()
        attaches, self._paid = self.book.attaches - self._paid, self.book.attaches
        await asyncio.sleep(self._pace.delay(attaches, asyncio.get_running_loop().time()))

    async def _no_crowd(self) -> None:
        """Lets the writer look, and waits while too much is to be told."""
        self.more.set()
        while self.book.crowded:
            self._taken.clear()
            await self._taken.wait()

    async def _write(self, context: Context) -> None:
        """Sends what waits, as much at once as a message holds."""
        while True:
            while (message := self.book.outbox.take()) is not None:
                await context.write(message)
                self._taken.set()
            if self._over and self._ending:
                raise status.draining()
            if self._over:
                return
            if self._calls.draining and not self._ending and self.book.done:
                self._ending = True
                self.book.outbox.put_closing()
                asyncio.get_running_loop().call_later(self._limits.leave_seconds, self._end)
                continue
            self.more.clear()
            await self.more.wait()


def _checked(first: wire.SessionRequest | None) -> wire.SessionRequest:
    """The first message.

    Raises:
        CallError: INVALID_FIELD without options; NOT_ALLOWED for what only gateways may have.
    """
    if first is None or not first.HasField("options"):
        raise status.invalid_field("options", "is not set; the first message of a session must have it")
    for field, wanted in (("load", first.options.load), ("cache_events", first.options.HasField("cache_events"))):
        if wanted:
            raise status.not_allowed(f"options.{field}", "is for gateways: ask for statistics with GetEngineStat")
    return first


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration
