"""The session streams to the engines: one each, reopened when it breaks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from headrace_proto.pure.faults import is_fault
from headrace_proto.server.logs import logger
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway import __version__, status
from headrace_gateway.access.uses import OwnerUses
from headrace_gateway.engines.engine import Engine
from headrace_gateway.faults import defect
from headrace_gateway.forwarding.forward import failure_of
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.silence import Silence
from headrace_gateway.sessions.upstream_channels import UpstreamChannels
from headrace_gateway.status import CallError

log = logger(__name__)

_JUDGE_SECONDS = 1.0
"""Seconds that readers of a broken stream wait for a poll: a closed port refuses it at once, a stopped one never."""


class EngineLink:
    """The stream to one engine, reopened when it breaks. The engine's messages are always read at once.

    It also carries the engine's load reports and cache events, so it stays open without readers. Owns the channels of
    the current stream; when it breaks, they are failed as a whole, and new attaches go to the channels of the next one.

    Args:
        engine: engine to read from.
        limits: intervals of pings and of reopening.
        uses: takes what the engine reports of owners.

    Attributes:
        channels: channels of the current stream, or of the next one while there is none.
    """

    def __init__(self, engine: Engine, limits: SessionLimits, uses: OwnerUses) -> None:
        self._engine = engine
        self._uses = uses
        self._limits = limits
        self._work = asyncio.Event()
        self._opened = self._leaving = False
        self.channels = self._new_channels()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Close the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = self._limits.reopen_seconds
        while True:
            await self._wait_until_needed()
            self._opened = self._leaving = False
            failure = await self._run_stream()
            self._engine.load.lost()
            self._uses.begin(self._engine.name)
            self._engine.cached.lost()
            failure = await self._judged(failure)
            # Readers stay with the channels that they attached to, which fail below; new ones get the next stream's.
            channels, self.channels = self.channels, self._new_channels()
            self._work.clear()
            emit = log.warning if self._opened or channels.readers else log.debug
            emit("engine_session_lost", engine=self._engine.name, channels=channels.readers, reason=failure.reason)
            try:
                for _ in channels.fail_in_portions(failure.status):
                    await asyncio.sleep(0)
            finally:
                channels.fail(failure.status)  # If `close` cancelled this task between two portions.
            pause = self._limits.reopen_seconds if self._opened else min(pause * 2, self._limits.reopen_at_most)
            await asyncio.sleep(pause)

    async def _judged(self, failure: CallError) -> CallError:
        """Return a failure to reach the engine with what a poll finds out about it: whether it is lost."""
        if failure.reason != "ENGINE_UNREACHABLE":
            return failure
        with suppress(TimeoutError):
            async with asyncio.timeout(_JUDGE_SECONDS):
                await self._engine.refresh()
        return self._engine.unreachable(reached=True)

    async def _wait_until_needed(self) -> None:
        """Wait until the engine can be reached, or a reader attaches."""
        causes = [asyncio.create_task(event.wait()) for event in (self._work, self._engine.reached)]
        try:
            await asyncio.wait(causes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(*causes)

    async def _run_stream(self) -> CallError:
        """Run one stream. Return the failure that ended it."""
        try:
            await self._engine.reach()
            self._uses.begin(self._engine.name)  # An engine that had the name before may have left reports.
            await self._stream()
        except CallError as error:
            return error
        except grpc.aio.AioRpcError as error:
            return failure_of(self._engine, error)
        except TimeoutError:
            self._engine.suspect("its session went silent")
        except ValueError as error:
            log.error("engine_session_malformed", engine=self._engine.name, problem=str(error))
        except BaseException as error:  # otherwise all its readers would wait for ever
            if not is_fault(error):
                raise
            return defect("Session", error)
        return self._engine.unreachable(reached=True)

    async def _stream(self) -> None:
        call = self._engine.requests.Session()
        first = self.channels.take() or wire.SessionRequest()
        first.options.client = f"headrace-gateway {__version__}"
        first.options.load = first.options.usage = True
        if self._engine.view.tells_cache:
            first.options.cache_events.SetInParent()
        with suppress(grpc.aio.BaseError, asyncio.InvalidStateError):  # reading says why the engine refuses
            await call.write(first)
        writing = asyncio.create_task(self._write(call))
        watching: asyncio.Task[None] | None = None
        pinging: asyncio.Task[None] | None = None
        try:
            async with Silence(self._limits.ping_timeout) as silence:
                watching = asyncio.create_task(self._end_when_missing(silence))
                while (response := await call.read()) is not grpc.aio.EOF:
                    silence.heard()
                    self._engine.liveness.heard()
                    if response.HasField("opened"):
                        silence.allow(_seconds(response.opened.ping_timeout, self._limits.ping_timeout))
                        interval = _seconds(response.opened.ping_interval, self._limits.ping_interval)
                        pinging = pinging or asyncio.create_task(self._ping(interval))
                        self._opened = True
                    self._receive(response)
        finally:
            # The call first, so that no task is left waiting in it.
            call.cancel()
            await _ended(writing, watching, pinging)

    async def _end_when_missing(self, silence: Silence) -> None:
        """End the stream once polls have found that the engine is lost."""
        await self._engine.missing.wait()
        silence.expire()

    def _receive(self, response: wire.SessionResponse) -> None:
        leaving, load = response.HasField("closing"), list(response.load)
        if response.usage:
            self._uses.update(self._engine.name, response.usage)
            response.ClearField("usage")
        self.channels.deliver(response)
        if leaving:
            self._leaving = True
            self._work.set()
        if response.HasField("cache_events"):
            self._engine.cached.apply(response.cache_events)
        if load and self._engine.load.update(load):
            self._engine.wake.set()

    async def _write(self, call: Any) -> None:
        """Send what the channels have to send, until the engine leaves. Failures are left to the reading side."""
        with suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
            while not self._leaving:
                while (request := self.channels.take()) is not None:
                    await call.write(request)
                self._work.clear()
                await self._work.wait()
            await call.done_writing()

    async def _ping(self, interval: float) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(interval)
            self.channels.ping(number)

    def _new_channels(self) -> UpstreamChannels:
        return UpstreamChannels(self._engine.name, self._limits.message_bytes, self._work.set)


class EngineLinks:
    """The streams to all engines.

    Args:
        find: returns the engine that a handle names; raises CallError if there is none.
        limits: of each stream.
        uses: takes what engines report of owners.
    """

    def __init__(self, find: Callable[[str], Engine], limits: SessionLimits, uses: OwnerUses) -> None:
        self._find = find
        self._uses = uses
        self._limits = limits
        self._links: dict[Engine, EngineLink] = {}

    def follow(self, engine: Engine) -> None:
        """Open a stream to an engine as soon as it can be reached."""
        self._link(engine)

    async def leave(self, engine: Engine) -> None:
        """Close the stream to an engine; its readers fail."""
        if (link := self._links.pop(engine, None)) is not None:
            await link.close()
            # Its task has ended, and with it whoever would have failed the readers.
            link.channels.fail(status.unknown_engine(engine.name, []).status)
            if all(other.name != engine.name for other in self._links):  # Else what is known is of the one of its name.
                self._uses.leave(engine.name)

    def of_handle(self, handle: str) -> UpstreamChannels:
        """Return the channels of the stream to the engine that a handle names.

        Raises:
            CallError: UNKNOWN_REQUEST if the text is not a handle, UNKNOWN_ENGINE.
        """
        return self._link(self._find(handle)).channels

    async def close(self) -> None:
        """Close all streams."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    def _link(self, engine: Engine) -> EngineLink:
        if engine not in self._links:
            self._links[engine] = EngineLink(engine, self._limits, self._uses)
        return self._links[engine]


def _seconds(duration: Duration, default: float) -> float:
    return duration.ToNanoseconds() / 1e9 or default


async def _ended(*tasks: asyncio.Task[Any] | None) -> None:
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)
