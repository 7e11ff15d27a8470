"""One call of the in-process transport: a task on the engine's loop, read from the caller's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.transport import CallError, client_closed

from headrace_engine.engine.engine import Engine
from headrace_engine.service.convert.status import plain_status
from headrace_engine.service.engine_servicer import EngineServicer
from headrace_engine.service.failures import CallFailed, call_stream, call_unary, closing
from headrace_engine.service.model_servicer import ModelServicer
from headrace_engine.service.request_servicer import RequestServicer

ANSWERS_AHEAD = 16
"""Responses buffered for a slow reader; beyond that the method waits, as it does for gRPC's flow control."""


@dataclass(frozen=True, slots=True)
class Rpc:
    """One method of a servicer, with the types of its messages.

    Attributes:
        streams: its responses are a stream.
        converses: its requests are a stream.
    """

    name: str
    method: Any
    streams: bool
    converses: bool
    request_type: type[Message]
    response_type: type[Message]


def rpc_table(engine: Engine) -> dict[str, Rpc]:
    """Return all methods of an engine by full name, such as "headrace.v1.RequestService/StartRequest"."""
    servicers = {
        engine_service_pb2.DESCRIPTOR.services_by_name["EngineService"]: EngineServicer(engine),
        model_service_pb2.DESCRIPTOR.services_by_name["ModelService"]: ModelServicer(engine),
        request_service_pb2.DESCRIPTOR.services_by_name["RequestService"]: RequestServicer(engine),
    }
    return {
        f"{service.full_name}/{method.name}": Rpc(
            method.name,
            getattr(servicer, method.name),
            method.server_streaming,
            method.client_streaming,
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for service, servicer in servicers.items()
        for method in service.methods
    }


class Call:
    """A call in progress. Iterating yields its responses, and then stops or raises CallError. One reader at a time.

    The task belongs to the engine's loop; the caller's thread reaches it through `call_soon_threadsafe` alone, and gets
    encoded messages, so neither side shares an object with the other.

    Args:
        rpc: the method.
        request: encoded request.
        timeout: seconds after which it fails with DEADLINE_EXCEEDED; None: never.
        loop: event loop of the engine.
    """

    def __init__(self, rpc: Rpc, request: bytes, timeout: float | None, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = asyncio.Event()
        self._rpc, self._request, self._timeout, self._loop = rpc, request, timeout, loop
        self._found: SimpleQueue[bytes | End] = SimpleQueue()
        self._end: End | None = None
        self._buffer = asyncio.Semaphore(ANSWERS_AHEAD)
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self, done: Callable[[Call], None]) -> None:
        """Begin; `done` is called on the loop when the call has ended."""
        self._loop.call_soon_threadsafe(self._start, done)

    def cancel(self) -> None:
        """Cancel the call: buffered responses stay readable, then CallError is raised. No effect after its end."""
        with suppress(RuntimeError):  # the loop is closed, so every call has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        """Cancel the call with CLIENT_CLOSED. Runs on the engine's loop."""
        self._closing = True
        self._cancel()

    def __iter__(self) -> Call:
        return self

    def __next__(self) -> Message:
        answer = self._taken(self._end or self._found.get())
        if answer is None:
            raise StopIteration
        return answer

    def _taken(self, found: bytes | End) -> Message | None:
        """Return a response, or None at the end. Raise CallError if the call failed."""
        if isinstance(found, bytes):
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._buffer.release)
            return self._rpc.response_type.FromString(found)
        self._end = found
        if found.failure is not None:
            raise CallError(found.failure)
        return None

    def _deliver(self, found: bytes | End) -> None:
        """Hand a response or the end to the reader. Runs on the engine's loop."""
        self._found.put(found)

    def _start(self, done: Callable[[Call], None]) -> None:
        self._task = self._loop.create_task(self._answer())
        self._task.add_done_callback(lambda task: self._finish(task, done))

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _answer(self) -> None:
        if self._timeout is not None and self._timeout <= 0:
            raise TimeoutError
        async with asyncio.timeout(self._timeout), closing(self._answers(self._argument())) as answers:
            async for answer in answers:
                await self._buffer.acquire()
                self._deliver(answer.SerializeToString())

    def _argument(self) -> Any:
        """Return the argument of the method."""
        return self._rpc.request_type.FromString(self._request)

    async def _answers(self, request: Any) -> AsyncIterator[Message]:
        if not self._rpc.streams:
            yield await call_unary(self._rpc.name, self._rpc.method, request)
            return
        async with closing(call_stream(self._rpc.name, self._rpc.method, request)) as answers:
            async for answer in answers:
                yield answer

    def _finish(self, task: asyncio.Task[None], done: Callable[[Call], None]) -> None:
        self._deliver(End(client_closed() if self._closing and task.cancelled() else _failure(task)))
        self.ended.set()
        done(self)


class Conversation(Call):
    """A bidirectional streaming call. A `headrace._transport.transport.MessageChannel`."""

    def __init__(self, rpc: Rpc, timeout: float | None, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(rpc, b"", timeout, loop)
        self._questions: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, message: Message) -> None:
        """Send a request; return at once. Dropped after the end of the call."""
        self._ask(message.SerializeToString())

    def half_close(self) -> None:
        """Send no more requests; responses still come."""
        self._ask(None)

    def cancel(self, *, lost: bool = False) -> None:
        """Cancel the call. `lost` has no effect: there is no other engine to go to."""
        super().cancel()

    def _ask(self, question: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, so the call has ended
            self._loop.call_soon_threadsafe(self._questions.put_nowait, question)

    async def _argument(self) -> AsyncIterator[Message]:
        while (question := await self._questions.get()) is not None:
            yield self._rpc.request_type.FromString(question)


@dataclass(frozen=True, slots=True)
class End:
    """End of the responses; has a failure if the call failed."""

    failure: Status | None


def _failure(task: asyncio.Task[None]) -> Status | None:
    if task.cancelled():
        return plain_status(grpc.StatusCode.CANCELLED, "the call was cancelled")
    error = task.exception()
    if isinstance(error, CallFailed):
        return error.status
    if isinstance(error, TimeoutError):
        return plain_status(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline expired")
    return None if error is None else plain_status(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
