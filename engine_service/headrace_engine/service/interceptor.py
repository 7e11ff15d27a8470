"""Failures of calls as gRPC statuses with typed details."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from headrace.v1.status_pb2 import Status

from headrace_engine.service.failures import CallFailed, call_stream, call_unary, closing
from headrace_engine.service.status import grpc_code, shorten

MAX_GRPC_MESSAGE = 1920
"""Bytes of grpc-message as it travels: a byte that is not printable ASCII takes three."""

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class FailureInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call of a headrace service through `failures`, and aborts it with the status that comes out."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, wrapped."""
        handler: grpc.RpcMethodHandler[Any, Any] | None = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/headrace."):
            return handler
        return _wrap(handler, handler_call_details.method.rpartition("/")[2])


def _wrap(handler: Any, name: str) -> grpc.RpcMethodHandler[Any, Any]:
    coders = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.stream_stream:
        return grpc.stream_stream_rpc_method_handler(_stream(name, handler.stream_stream), **coders)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_stream(name, handler.unary_stream), **coders)
    return grpc.unary_unary_rpc_method_handler(_unary(name, handler.unary_unary), **coders)


def _unary(name: str, method: Any) -> Any:
    async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await call_unary(name, method, request)
        except CallFailed as failure:
            await _abort(context, failure.status)

    return handle


def _stream(name: str, method: Any) -> Any:
    """A handler that writes by itself: one that yields is left to the garbage collector when its client is gone."""

    async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            async with closing(call_stream(name, method, request)) as answers:
                async for answer in answers:
                    await context.write(answer)
        except CallFailed as failure:
            await _abort(context, failure.status)

    return handle


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
    limit = MAX_GRPC_MESSAGE if status.message.isascii() else MAX_GRPC_MESSAGE // 3
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(grpc_code(status), shorten(status.message, limit), trailing_metadata=details)
