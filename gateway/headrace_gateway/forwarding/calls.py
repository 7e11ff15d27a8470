"""The calls in progress: counted for the drain; the one place where failures become statuses."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from headrace_proto.pure.faults import is_fault
from headrace_proto.pure.host_shares import HostShares
from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.intake import Intake, NoMessage
from headrace_proto.server.logs import logger

from headrace_gateway import status
from headrace_gateway.faults import defect
from headrace_gateway.forwarding.forward import Context
from headrace_gateway.owners import refuse_owner
from headrace_gateway.status import CallError

log = logger(__name__)

Behaviour = Callable[[Any, Context], Any]
Decode = Callable[[Any], Any]

_SERVED = "/headrace.v1."
_FACTS = ("request_id", "handle", "model_name")
_ENDLESS = frozenset({"WatchModel", "WatchEngineStat"})
_refusals = LogBudget()
_READING: dict[Any, Any] = {
    grpc.unary_unary_rpc_method_handler: grpc.stream_unary_rpc_method_handler,
    grpc.unary_stream_rpc_method_handler: grpc.stream_stream_rpc_method_handler,
}


MAX_CALLS = 4000
"""Maximum concurrent calls. An engine accepts 4,096 streams per connection, and the gateway polls over it too."""

MAX_SESSIONS = 4096
"""Maximum concurrent sessions."""


class LiveCalls:
    """The calls in progress. Those that never end by themselves are kept apart.

    Attributes:
        draining: the gateway refuses new work.
        on_drain: called when the drain begins.
    """

    def __init__(self) -> None:
        self.draining = False
        self.on_drain: list[Callable[[], None]] = []
        self._awaited: set[asyncio.Task[Any]] = set()
        self._endless: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = HostShares(MAX_CALLS)
        self._sessions = HostShares(MAX_SESSIONS)

    @property
    def count(self) -> int:
        """Number of calls that will end by themselves."""
        return len(self._awaited)

    @contextmanager
    def entered(self, method: str) -> Iterator[None]:
        """Count the current task as a call of `method`, such as "/headrace.v1.RequestService/Generate"."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call runs in a task")
        group = self._endless if _name(method) in _ENDLESS else self._awaited
        group.add(task)
        self._update_idle()
        try:
            yield
        finally:
            group.discard(task)
            self._cut.discard(task)
            self._update_idle()

    def sharing(self, method: str, peer: str) -> AbstractContextManager[None]:
        """Return a context that counts a call of `method` against the share of its host and connection.

        Raises:
            CallError: QUEUE_FULL, its host or connection has used up its share; DRAINING, it is a watch, and the
                gateway is draining.
        """
        if _name(method) in _ENDLESS:
            self.refuse_if_draining()
        ours, what = (self._sessions, "sessions") if _name(method) == "Session" else (self._calls, "calls")
        if not ours.has_room(peer):
            raise status.full_calls(ours.refusal(peer, f"{what} in progress"))
        return ours.holding(peer)

    def refuse_if_draining(self) -> None:
        """Refuse new work in a gateway that is shutting down.

        Raises:
            CallError: DRAINING.
        """
        if self.draining:
            raise status.draining()

    async def drain(self, limit: float) -> int:
        """End watches, wait up to `limit` seconds for the other calls, cut the rest, and return how many were cut."""
        self.draining = True
        for notify in self.on_drain:
            notify()
        self._end(self._endless)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._idle.wait()
        left = self.count
        self.cut()
        return left

    def cut(self) -> None:
        """Cancel the calls that a drain waits for; each fails with DRAINING."""
        self._end(self._awaited)

    def was_cut(self) -> bool:
        """True if `drain` or `cut` cancelled the current task, rather than its client."""
        task = asyncio.current_task()
        return task in self._cut

    def _end(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in list(tasks):
            self._cut.add(task)
            task.cancel()

    def _update_idle(self) -> None:
        if self._awaited:
            self._idle.clear()
        else:
            self._idle.set()


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Counts each call, and maps what its servicer raises to the status of the call.

    Args:
        calls: where calls are counted.
    """

    def __init__(self, calls: LiveCalls) -> None:
        self._calls = calls
        self._intake = Intake()

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap the methods of our own services; for health and reflection, only the decoding of requests."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        decode: Callable[..., Any] = _decode
        if handler.request_streaming:
            make, behaviour, decode = grpc.stream_stream_rpc_method_handler, handler.stream_stream, _decode_all
        elif handler.response_streaming:
            make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            make, behaviour = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        guard = self._guard if method.startswith(_SERVED) else _foreign
        if (
            guard == self._guard and not handler.request_streaming
        ):  # gRPC would read the message before the intake allows it
            make = _READING[make]
        decoding = partial(decode, method, handler.request_deserializer)
        return make(guard(method, behaviour, decoding), None, handler.response_serializer)

    def _guard(self, method: str, behaviour: Behaviour, decode: Decode) -> Any:
        async def guarded(data: Any, context: Context) -> Any:
            request = None
            with self._calls.entered(method):
                try:
                    with self._calls.sharing(method, context.peer()):
                        request = decode(await self._whole(method, data, context))
                        _check(request)
                        return await behaviour(request, context)
                except CallError as error:
                    failure = error
                except asyncio.CancelledError:
                    failure = self._cancelled()
                except grpc.aio.BaseError:
                    raise
                except BaseException as error:
                    if not is_fault(error):
                        raise
                    failure = defect(_name(method), error)
                return await _answer(method, request, context, failure)

        return guarded

    async def _whole(self, method: str, messages: Any, context: Context) -> Any:
        """Return the one message of a call, read in its turn; for a session, its stream of messages."""
        if _name(method) == "Session":
            return messages
        try:
            return await self._intake.read(context.peer(), messages)
        except NoMessage as error:
            raise status.no_message(_name(method), str(error)) from None

    def _cancelled(self) -> CallError:
        """Return the failure of a cancelled call. Raise CancelledError if its client cancelled: no status is sent."""
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return status.fault("CancelledError")
        if not self._calls.was_cut():
            raise asyncio.CancelledError
        return status.draining()


def _check(request: Any) -> None:
    """Refuse a request that names an owner. Messages of a session are checked as they come."""
    if isinstance(request, Message):
        refuse_owner(request)


def _foreign(method: str, behaviour: Behaviour, decode: Decode) -> Any:
    """Wrap a method of health or reflection: only decoding failures are mapped to a status."""

    async def guarded(data: Any, context: Context) -> Any:
        try:
            request = decode(data)
            if not inspect.isasyncgenfunction(behaviour):
                return await behaviour(request, context)
            async with aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    await context.write(answer)
        except CallError as error:
            await _answer(method, None, context, error)

    return guarded


def _decode(method: str, read: Callable[[bytes], Any], data: bytes) -> Any:
    """Decode a request. Raise CallError (INVALID_ARGUMENT) for bytes that are not a valid message."""
    try:
        return read(data)
    except DecodeError:
        raise status.undecodable(_name(method), len(data)) from None


async def _decode_all(method: str, read: Callable[[bytes], Any], requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for data in requests:
        yield _decode(method, read, data)


async def _answer(method: str, request: Any, context: Context, failure: CallError) -> NoReturn:
    """Log a refusal and abort the call. Only names and reasons are logged: messages may quote what a user sent."""
    facts: dict[str, Any] = {name: status.shorten(text) for name in _FACTS if (text := getattr(request, name, ""))}
    omitted = _refusals.spend((method, failure.reason), facts.get("handle") or facts.get("request_id", ""))
    if omitted is not None:
        facts |= {"omitted": omitted} if omitted else {}
        log.info("request_refused", method=_name(method), code=failure.code.name, reason=failure.reason, **facts)
    await context.abort(failure.code, failure.status.message, failure.trailing_metadata)


def _name(method: str) -> str:
    return method.rpartition("/")[2]
