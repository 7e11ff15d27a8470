"""The gRPC transport of the asynchronous client."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from headrace_proto.wire.transport import CallError

from headrace._base.aio_waiting import being_cancelled
from headrace._transport.grpc_channels import Channel, Channels, Failover, check_size, closed
from headrace._transport.mismatch import is_ambiguous
from headrace._transport.traces import traced
from headrace._transport.transport import status_lost

_LOST_STATUS = "Internal error from Core"


class AsyncGrpcTransport:
    """A transport over gRPC to one of several servers; if it cannot be reached, to the next one.

    Arguments and errors are those of `GrpcTransport`. The first calls create the channels, in their event loop.
    """

    def __init__(
        self, addresses: str, *, api_key: str | None = None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        channels = Channels(grpc.aio, addresses, api_key, credentials)
        self._metadata, self._calls, self._streams = channels.metadata, channels.calls, channels.streams

    async def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """Make a unary call and return its response. Raises CallError."""
        check_size(request)
        channel = self._calls.channel()
        try:
            with traced(method, self._metadata) as metadata:
                return cast(Message, await _begin(channel, method, request, timeout=timeout, metadata=metadata))
        except grpc.RpcError as error:
            raise await _failed(self._calls, channel, error) from None
        except asyncio.CancelledError:
            raise _cancelled() from None

    def stream(self, method: str, request: Message, *, timeout: float | None) -> AsyncGrpcStream:
        """Open a call that streams responses, without waiting for the first."""
        check_size(request)
        channel = self._streams.channel()
        with traced(method, self._metadata) as metadata:
            call = _begin(channel, method, request, timeout=timeout, metadata=metadata)
        return AsyncGrpcStream(call, channel, self._streams)

    def session(self, method: str) -> AsyncGrpcChannel:
        """Open a call that streams both ways, without waiting."""
        channel = self._streams.channel()
        return AsyncGrpcChannel(_begin(channel, method, metadata=self._metadata), channel, self._streams)

    def reconnect(self) -> None:
        """Make the next unary call over a new connection, to the next address; those in progress go on."""
        self._calls.reconnect()

    async def close(self) -> None:
        """Close all calls and connections."""
        await asyncio.gather(*self._calls.close(), *self._streams.close())


class AsyncGrpcStream:
    """The responses of one streaming call."""

    def __init__(self, call: Any, channel: Channel, failover: Failover) -> None:
        self._call = call
        self._channel = channel
        self._failover = failover

    def __aiter__(self) -> AsyncGrpcStream:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> Message:
        """The next answer. Raises CallError."""
        try:
            answer = await self._call.read()
        except grpc.RpcError as error:
            raise await _failed(self._failover, self._channel, error) from None
        except asyncio.CancelledError:
            raise _cancelled() from None
        if answer is grpc.aio.EOF:
            raise StopAsyncIteration
        return cast(Message, answer)

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()


class AsyncGrpcChannel(AsyncGrpcStream):
    """One call that streams both ways. A task of its own sends queued messages, since gRPC takes one at a time."""

    def __init__(self, call: Any, channel: Channel, failover: Failover) -> None:
        super().__init__(call, channel, failover)
        self._waiting: deque[Message | None] = deque()
        self._half_closed = False
        self._sending: asyncio.Task[None] | None = None

    async def __anext__(self) -> Message:
        """The next answer. Raises CallError."""
        try:
            return await super().__anext__()
        except CallError as failure:
            # If a message is sent on a call that the server has just ended, gRPC reports this instead of the actual
            # status, which is lost; another call gets it.
            if failure.status.message == _LOST_STATUS:
                raise status_lost("the session") from None
            raise

    def send(self, message: Message) -> None:
        """Queue a message to be sent."""
        if not self._half_closed:
            self._put(message)

    def half_close(self) -> None:
        """End the sending direction; responses still arrive."""
        if not self._half_closed:
            self._half_closed = True
            self._put(None)

    def _put(self, message: Message | None) -> None:
        self._waiting.append(message)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="headrace-sender")

    async def _send(self) -> None:
        try:
            while self._waiting:
                message = self._waiting.popleft()
                await (self._call.done_writing() if message is None else self._call.write(message))
        except (grpc.RpcError, asyncio.InvalidStateError):
            # The call has ended; reading its responses raises why.
            self._waiting.clear()

    def cancel(self, *, lost: bool = False) -> None:
        """Cancel the call; `lost`: the next one goes to another address."""
        if lost:
            self._failover.leave(self._channel)
        if self._sending is not None:
            self._sending.cancel()
        super().cancel()


async def _failed(failover: Failover, channel: Channel, error: grpc.RpcError) -> CallError:
    """Return the exception of a failed call. A probe of the server, where one is needed, runs in a thread."""
    if not is_ambiguous(cast(grpc.Call, error).details() or ""):
        return failover.failed(channel, error)
    return await asyncio.to_thread(failover.failed, channel, error)


def _begin(channel: Channel, method: str, *questions: Message, **options: Any) -> Any:
    try:
        return channel.call(method)(*questions, **options)
    except grpc.aio.UsageError as error:
        raise closed() from error


def _cancelled() -> BaseException:
    """Return the exception of a cancelled wait: CancelledError if this task was cancelled, else that of `close`."""
    return asyncio.CancelledError() if being_cancelled() else closed()
