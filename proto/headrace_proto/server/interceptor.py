"""Interceptor of a server's calls: reads and decodes requests, and leaves the rest to the server.

gRPC would read the messages of all calls at once, and report undecodable bytes as a defect of the server.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headrace_proto.server.intake import Intake, NoMessage

WATCHES = frozenset({"WatchModel", "WatchEngineStat", "SubscribeKvEvents"})
"""Calls that last as long as their clients, and would hold up a drain."""

Context = grpc.aio.ServicerContext[Any, Any]
Write = Callable[[Any], Awaitable[None]]

_OURS = ("/headrace.", "/vllm.grpc.engine.")
"""Beginnings of paths of the contract, and of vLLM's service, which an engine may serve too."""

_HEALTH = "/grpc.health."
_HANDLERS: dict[tuple[bool, bool], Any] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""Handlers by whether requests, and responses, are streams."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method that a server implements.

    Attributes:
        name: of the RPC, such as "Generate".
        ours: of a service of the contract, rather than of health or reflection.
        open: of the health service, which asks nobody who it is.
        streams_in: its requests are a stream.
        streams_out: its responses are a stream.
        behaviour: method of the servicer.
        read: decodes a request; raises DecodeError.
    """

    name: str
    ours: bool
    open: bool
    streams_in: bool
    streams_out: bool
    behaviour: Callable[[Any, Any], Any]
    read: Callable[[bytes], Any]

    @classmethod
    def of(cls, path: str, handler: Any) -> Method:
        """Return the method of a handler."""
        kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        behaviour = next(kind for kind in kinds if kind is not None)
        streams = handler.request_streaming, handler.response_streaming
        kind = path.startswith(_OURS), path.startswith(_HEALTH)
        return cls(path.rpartition("/")[2], *kind, *streams, behaviour, handler.request_deserializer)

    async def run(self, request: Any, context: Context, write: Write) -> Any:
        """Call a method of another library: a coroutine, or a generator of responses, which `write` sends."""
        if not inspect.isasyncgenfunction(self.behaviour):
            return await self.behaviour(request, context)
        async with aclosing(self.behaviour(request, context)) as responses:
            async for response in responses:
                await write(response)
        return None


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Serves each call by `serve`, which a server implements.

    Args:
        refusal: makes the exception that refuses a call without a valid request, from one sentence.
    """

    def __init__(self, refusal: Callable[[str], Exception]) -> None:
        self._intake = Intake()
        self._refusal = refusal

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Replace the handler of a method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = Method.of(handler_call_details.method, handler)
        # As a stream, a single message of ours is read by `request` rather than by gRPC.
        make = _HANDLERS[method.ours or method.streams_in, method.streams_out]
        return make(partial(self.serve, method), None, handler.response_serializer)

    async def serve(self, method: Method, data: Any, context: Context) -> Any:
        """Serve one call: return its response, or write its responses.

        Args:
            data: the bytes of its request, or a stream of them, for `request`.
        """
        raise NotImplementedError

    async def request(self, method: Method, data: Any, context: Context) -> Any:
        """Return the decoded request of a call, once its turn to be read has come; of a stream, its requests.

        Raises:
            Exception: a refusal; there is no valid request.
        """
        if method.streams_in:
            return self._decode_all(method, data)
        if method.ours:
            try:
                data = await self._intake.read(context.peer(), data)
            except NoMessage as error:
                raise self._refusal(f"{method.name}: {error}") from None
        return self._decode(method, data)

    def _decode(self, method: Method, data: bytes) -> Any:
        try:
            return method.read(data)
        except DecodeError:
            wrong = f"the request is not a valid message of {method.name}: its {len(data)} bytes cannot be parsed"
            raise self._refusal(wrong) from None

    async def _decode_all(self, method: Method, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield self._decode(method, data)
