"""One client's session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from headrace_proto.pure.host_shares import host_of
from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.interceptor import Context
from headrace_proto.server.logs import logger
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway import status
from headrace_gateway.access import callers
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.sessions.attach_pace import ConnectionPace
from headrace_gateway.sessions.client_channels import ClientChannels
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.upstream import EngineLinks

log = logger(__name__)
_lines = LogBudget()


class ClientSession:
    """One client's session: a task that reads its messages and a task that writes the outbox.

    `run` owns both tasks, and detaches all channels before it returns, however it ends.

    Args:
        links: streams to the engines.
        limits: of the session.
        calls: knows whether the gateway drains.
        pace: limits the attaches of its connection.

    Attributes:
        channels: its channels and outbox.
        more: set to wake the writer.
    """

    def __init__(self, links: EngineLinks, limits: SessionLimits, calls: LiveCalls, pace: ConnectionPace) -> None:
        self.more = asyncio.Event()
        self.channels = ClientChannels(links.of_handle, limits, self.more.set, callers.current())
        self._limits = limits
        self._calls = calls
        self._pace = pace
        self._paid = 0
        self._taken = asyncio.Event()
        self._over = False
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that wait for the client."""
        return self.channels.outbox.held

    async def run(
        self, requests: AsyncIterator[wire.SessionRequest], context: Context, opened: wire.SessionOpened
    ) -> None:
        """Serve until the client leaves, is silent for too long, or sends something invalid.

        Raises:
            CallError: the client's error, or DRAINING.
        """
        first = _checked(await self._receive(requests))
        # gRPC cannot end a call while its first message is being sent, so send the metadata before.
        await context.send_initial_metadata(())
        closed = _log_opened(first.options.client, context.peer())
        self.channels.outbox.put_opened(opened)
        reading = asyncio.create_task(self._read(first, requests))
        writing = asyncio.create_task(self._write(context))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            # Engines stop sending; the writer sends what is left.
            await self._detach_all()
            self._end()
            if reading.done() and reading.exception() is None:  # deliver what was requested before the half-close
                await asyncio.wait((writing,), timeout=self._limits.ping_timeout)
        finally:
            try:
                # The tasks first: one that still reads would attach channels that nobody detaches.
                await _cancel(reading, writing)
                await self._detach_all()
            finally:
                if self._leaving is not None:
                    self._leaving.cancel()
                self._end()
                closed()
        for task in (reading, writing):
            if not task.cancelled():
                task.result()

    async def _detach_all(self) -> None:
        """Detach all channels, in portions."""
        for _ in self.channels.close_in_portions():
            await asyncio.sleep(0)

    def _end(self) -> None:
        """Let the writer stop once the outbox is empty."""
        self._over = True
        self.channels.close()
        self.more.set()

    async def _receive(self, requests: AsyncIterator[wire.SessionRequest]) -> wire.SessionRequest | None:
        try:
            async with asyncio.timeout(self._limits.ping_timeout):
                return await anext(requests, None)
        except TimeoutError:
            raise status.silent_session(self._limits.ping_interval, self._limits.ping_timeout) from None

    async def _read(self, first: wire.SessionRequest, requests: AsyncIterator[wire.SessionRequest]) -> None:
        """Apply the client's messages until it half-closes."""
        request: wire.SessionRequest | None = first
        while request is not None:
            for _ in self.channels.apply_in_portions(request):
                await self._pause()
            await self._pause()
            request = await self._receive(requests)
            if request is not None and request.HasField("options"):
                raise status.invalid_field("options", "is set; only the first message of a session may have it")

    async def _pause(self) -> None:
        """Let other tasks run, and wait if the host attaches too fast."""
        await self._flush_backlog()
        attaches, self._paid = self.channels.attaches - self._paid, self.channels.attaches
        await self._pace.wait(attaches)

    async def _flush_backlog(self) -> None:
        """Wake the writer, and wait while too many failed attaches are unsent."""
        self.more.set()
        while self.channels.backlogged:
            self._taken.clear()
            await self._taken.wait()

    async def _write(self, context: Context) -> None:
        """Send what waits, as much per message as fits."""
        while True:
            while (message := self.channels.outbox.take()) is not None:
                await context.write(message)
                self._taken.set()
            if self._over and self._leaving is not None:
                raise status.draining()
            if self._over:
                return
            if self._calls.draining and self._leaving is None and self.channels.done:
                self.channels.outbox.put_closing()
                self._leaving = asyncio.get_running_loop().call_later(self._limits.leave_seconds, self._end)
                continue
            self.more.clear()
            await self.more.wait()


def _checked(first: wire.SessionRequest | None) -> wire.SessionRequest:
    """Check the first message.

    Raises:
        CallError: INVALID_FIELD without options; NOT_ALLOWED for options of gateways.
    """
    if first is None or not first.HasField("options"):
        raise status.invalid_field("options", "is not set; the first message of a session must have it")
    options = first.options
    wanted = {"load": options.load, "cache_events": options.HasField("cache_events"), "usage": options.usage}
    for field, requested in wanted.items():
        if requested:
            raise status.not_allowed(f"options.{field}", "is for gateways only: use GetEngineStat for statistics")
    return first


def _log_opened(client: str, peer: str) -> Callable[[], None]:
    """Log a session, if its host has not logged too many. Return what logs its end."""
    omitted = _lines.line("session_opened", party=host_of(peer))
    if omitted is None:
        return lambda: None
    facts = {"client": status.shorten(client), "peer": peer}
    log.info("session_opened", **facts, **omitted)
    return partial(log.info, "session_closed", **facts)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
