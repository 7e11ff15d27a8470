"""Interceptor of all calls: decodes requests, and aborts failed calls with gRPC statuses and typed details."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import grpc
from headrace_proto.server.intake import Intake, NoMessage
from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.status import trailer_of

from headrace_engine.errors import InvalidArgument, Unavailable
from headrace_engine.service.convert.callers import note_caller
from headrace_engine.service.convert.status import grpc_code, shorten, to_status
from headrace_engine.service.endless import EndlessCalls
from headrace_engine.service.failures import CallFailed, all_decoded, call_stream, call_unary, closing, decoded

MAX_GRPC_MESSAGE = 1920
"""Maximum bytes of grpc-message as encoded: a byte that is not printable ASCII takes three."""

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
Decode = Callable[[Any], Any]

_HEALTH = "/grpc.health."


class FailureInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call through `failures`, and aborts failed ones with their status.

    Requests are decoded here rather than by gRPC, which reports undecodable bytes as a defect of the server.

    Args:
        endless: ends the calls that never end by themselves.
    """

    def __init__(self, endless: EndlessCalls) -> None:
        self._intake = Intake()
        self._endless = endless

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of a method."""
        handler: grpc.RpcMethodHandler[Any, Any] | None = await continuation(handler_call_details)
        if handler is None:
            return None
        return _wrap(handler, handler_call_details.method, self._intake, self._endless)


def _wrap(handler: Any, path: str, intake: Intake, endless: EndlessCalls) -> grpc.RpcMethodHandler[Any, Any]:
    name, read = path.rpartition("/")[2], handler.request_deserializer
    coders = {"request_deserializer": None, "response_serializer": handler.response_serializer}
    if handler.stream_stream:
        decode = partial(all_decoded, name, read)
        return grpc.stream_stream_rpc_method_handler(_stream(name, handler.stream_stream, decode, endless), **coders)
    decode = partial(decoded, name, read)
    if path.startswith(_HEALTH):
        if handler.unary_stream:
            by_itself = _ending(name, _by_itself(handler.unary_stream, decode), endless)
            return grpc.unary_stream_rpc_method_handler(by_itself, **coders)
        return grpc.unary_unary_rpc_method_handler(_by_itself(handler.unary_unary, decode), **coders)
    if handler.unary_stream:
        streaming = _in_turn(name, _stream(name, handler.unary_stream, decode, endless), intake)
        return grpc.stream_stream_rpc_method_handler(streaming, **coders)
    return grpc.stream_unary_rpc_method_handler(
        _in_turn(name, _unary(name, handler.unary_unary, decode), intake), **coders
    )


def _in_turn(name: str, handle: Any, intake: Intake) -> Any:
    """Make a handler read its one message through the intake: gRPC would read all calls' messages at once."""

    async def read(messages: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            data = await intake.read(context.peer(), messages)
        except NoMessage as error:
            await _abort(context, to_status(InvalidArgument(f"{name}: {error}")))
        return await handle(data, context)

    return read


def _unary(name: str, method: Any, decode: Decode) -> Any:
    async def handle(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        note_caller(context)
        try:
            return await call_unary(name, method, decode(data))
        except CallFailed as failure:
            await _abort(context, failure.status)

    return handle


def _stream(name: str, method: Any, decode: Decode, endless: EndlessCalls) -> Any:
    """Make a handler that writes its responses; a generator would only be closed by the garbage collector."""

    async def handle(data: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        note_caller(context)
        try:
            async with closing(call_stream(name, method, decode(data))) as answers:
                async for answer in answers:
                    await context.write(answer)
        except CallFailed as failure:
            await _abort(context, failure.status)

    return _ending(name, handle, endless)


def _ending(name: str, handle: Any, endless: EndlessCalls) -> Any:
    """Make a handler whose calls end with the server."""

    async def ending(data: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            with endless.entered(name):
                await handle(data, context)
        except Unavailable as error:
            await _abort(context, to_status(error))

    return ending


def _by_itself(method: Any, decode: Decode) -> Any:
    """Wrap a method of another library: only its requests are decoded here."""

    async def handle(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            request = decode(data)
        except CallFailed as failure:
            await _abort(context, failure.status)
        return await method(request, context)

    return handle


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
    limit = MAX_GRPC_MESSAGE if status.message.isascii() else MAX_GRPC_MESSAGE // 3
    await context.abort(grpc_code(status), shorten(status.message, limit), trailing_metadata=trailer_of(status))
