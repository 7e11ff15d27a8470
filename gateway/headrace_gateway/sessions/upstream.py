"""The session streams to the engines: one each, opened while the engine can be reached, and opened again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc
import structlog
from google.protobuf.duration_pb2 import Duration
from headrace_proto.pure.faults import is_fault
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway import __version__, status
from headrace_gateway.faults import defect
from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.forwarding.forward import failure_of
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.silence import Silence
from headrace_gateway.sessions.upstream_channels import UpstreamBook
from headrace_gateway.status import CallError

log = structlog.get_logger()


class EngineLink:
    """The stream to one engine, and another one after it broke. What the engine sends is always read at once.

    It brings the engine's load figures too, so it stands whether or not someone reads.

    Args:
        engine: whom to read from.
        limits: how often to give signs of life, and how soon to open again.

    Attributes:
        book: the books of the present stream, or of the next one while there is none.
    """

    def __init__(self, engine: Engine, limits: SessionLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._work = asyncio.Event()
        self._opened = self._leaving = False
        self.book = self._new_book()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Ends the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = self._limits.reopen_seconds
        while True:
            await self._cause()
            self._opened = self._leaving = False
            failure = await self._life()
            self._engine.load.lost()
            book, self.book = self.book, self._new_book()
            self._work.clear()
            tell = log.warning if self._opened or book.readers else log.debug
            tell("engine_session_lost", engine=self._engine.name, channels=book.readers, reason=failure.reason)
            for _ in book.fail_in_portions(failure.status):
                await asyncio.sleep(0)
            pause = self._limits.reopen_seconds if self._opened else min(pause * 2, self._limits.reopen_at_most)
            await asyncio.sleep(pause)

    async def _cause(self) -> None:
        """Returns once the engine can be reached, or someone wants to read there."""
        causes = [asyncio.create_task(event.wait()) for event in (self._work, self._engine.reached)]
        try:
            await asyncio.wait(causes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(*causes)

    async def _life(self) -> CallError:
        """One stream, from its opening to the failure that ends it."""
        try:
            await self._engine.reach()
            await self._stream()
        except CallError as error:
            return error
        except grpc.aio.AioRpcError as error:
            return failure_of(self._engine, error)
        except TimeoutError:
            self._engine.suspect("its session is silent")
        except ValueError as error:
            log.error("engine_session_malformed", engine=self._engine.name, problem=str(error))
        except BaseException as error:  # Nobody else would hear of it, and all who read there would wait for ever.
            if not is_fault(error):
                raise
            return defect("Session", error)
        return status.engine_unreachable(self._engine.name, reached=True)

    async def _stream(self) -> None:
        call = self._engine.requests.Session()
        first = self.book.take() or wire.SessionRequest()
        first.options.client = f"headrace-gateway {__version__}"
        first.options.load = True
        await call.write(first)
        writing = asyncio.create_task(self._write(call))
        pinging: asyncio.Task[None] | None = None
        try:
            async with Silence(self._limits.ping_timeout) as silence:
                while (response := await call.read()) is not grpc.aio.EOF:
                    silence.heard()
                    if response.HasField("opened"):
                        silence.allow(_seconds(response.opened.ping_timeout, self._limits.ping_timeout))
                        interval = _seconds(response.opened.ping_interval, self._limits.ping_interval)
                        pinging = pinging or asyncio.create_task(self._ping(interval))
                        self._opened = True
                    self._hear(response)
        finally:
            call.cancel()
            await _ended(writing, pinging)

    def _hear(self, response: wire.SessionResponse) -> None:
        leaving, load = response.HasField("closing"), list(response.load)
        self.book.hear(response)
        if leaving:
            self._leaving = True
            self._work.set()
        if load and self._engine.load.told(load):
            self._engine.wake.set()

    async def _write(self, call: Any) -> None:
        """Says what the books have to say, until the engine goes away. When the stream is broken, its reader tells."""
        with suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
            while not self._leaving:
                while (request := self.book.take()) is not None:
                    await call.write(request)
                self._work.clear()
                await self._work.wait()
            await call.done_writing()

    async def _ping(self, interval: float) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(interval)
            self.book.ping(number)

    def _new_book(self) -> UpstreamBook:
        return UpstreamBook(self._engine.name, self._limits.message_bytes, self._work.set)


class EngineLinks:
    """The streams to all engines.

    Args:
        find: the engine that a handle names; raises CallError if there is none.
        limits: of each stream.
    """

    def __init__(self, find: Callable[[str], Engine], limits: SessionLimits) -> None:
        self._find = find
        self._limits = limits
        self._links: dict[str, EngineLink] = {}

    def start(self, engines: Iterable[Engine]) -> None:
        """Opens a stream to each engine as soon as it can be reached."""
        for engine in engines:
            self._link(engine)

    def of_handle(self, handle: str) -> UpstreamBook:
        """The books of the stream to the engine that a handle names.

        Raises:
            CallError: UNKNOWN_REQUEST for what is no handle, UNKNOWN_ENGINE.
        """
        return self._link(self._find(handle)).book

    async def close(self) -> None:
        """Ends all streams."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    def _link(self, engine: Engine) -> EngineLink:
        if engine.name not in self._links:
            self._links[engine.name] = EngineLink(engine, self._limits)
        return self._links[engine.name]


def _seconds(duration: Duration, default: float) -> float:
    return duration.ToNanoseconds() / 1e9 or default


async def _ended(*tasks: asyncio.Task[Any] | None) -> None:
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)
