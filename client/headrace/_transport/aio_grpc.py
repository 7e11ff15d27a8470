"""Carries calls over gRPC in an event loop."""

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
from headrace._transport.mismatch import is_doubtful
from headrace._transport.transport import broke_off

_LOST_STATUS = "Internal error from Core"


class AsyncGrpcTransport:
    """Calls over gRPC to one of several servers; when it cannot be reached, to the next one.

    The arguments and their errors are those of `GrpcTransport`. Channels are made by the first calls, in their loop.
    """

    def __init__(
        self, addresses: str, *, api_key: str | None = None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        channels = Channels(grpc.aio, addresses, api_key, credentials)
        self._metadata, self._calls, self._streams = channels.metadata, channels.calls, channels.streams

    async def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """One question, one answer. Raises CallError."""
        check_size(request)
        channel = self._calls.channel()
        call = _begin(channel, method, request, timeout=timeout, metadata=self._metadata)
        try:
            return cast(Message, await call)
        except grpc.RpcError as error:
            raise await _failed(self._calls, channel, error) from None
        except asyncio.CancelledError:
            raise _cut() from None

    def stream(self, method: str, request: Message, *, timeout: float | None) -> AsyncGrpcStream:
        """One question, many answers. Does not wait for the first."""
        check_size(request)
        channel = self._streams.channel()
        call = _begin(channel, method, request, timeout=timeout, metadata=self._metadata)
        return AsyncGrpcStream(call, channel, self._streams)

    def session(self, method: str) -> AsyncGrpcChannel:
        """Many questions, many answers. Waits for nothing."""
        channel = self._streams.channel()
        return AsyncGrpcChannel(_begin(channel, method, metadata=self._metadata), channel, self._streams)

    async def close(self) -> None:
        """Ends all calls and connections."""
        await asyncio.gather(*self._calls.close(), *self._streams.close())


class AsyncGrpcStream:
    """The answers of one streaming call."""

    def __init__(self, call: Any, channel: Channel, failover: Failover) -> None:
        self._call = call
        self._channel = channel
        self._failover = failover

    def __aiter__(self) -> AsyncGrpcStream:
        """Itself."""
        return self

    async def __anext__(self) -> Message:
        """The next answer. Raises CallError."""
        try:
            answer = await self._call.read()
        except grpc.RpcError as error:
            raise await _failed(self._failover, self._channel, error) from None
        except asyncio.CancelledError:
            raise _cut() from None
        if answer is grpc.aio.EOF:
            raise StopAsyncIteration
        return cast(Message, answer)

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()


class AsyncGrpcChannel(AsyncGrpcStream):
    """One call with many questions and many answers."""

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
            # Where a question meets a call that the server has just ended, gRPC puts this in the place of the true
            # status, which is lost. So nobody knows why; asking again will tell.
            if failure.status.message == _LOST_STATUS:
                raise broke_off("the session") from None
            raise

    def send(self, message: Message) -> None:
        """Sends a question; does not wait for it to leave."""
        if not self._half_closed:
            self._put(message)

    def half_close(self) -> None:
        """No more questions follow; answers still come."""
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
            # The call has ended, and whoever reads its answers hears why.
            self._waiting.clear()

    def cancel(self, *, lost: bool = False) -> None:
        """Ends the call; `lost`: the next one goes to another address."""
        if lost:
            self._failover.leave(self._channel)
        if self._sending is not None:
            self._sending.cancel()
        super().cancel()


async def _failed(failover: Failover, channel: Channel, error: grpc.RpcError) -> CallError:
    """What a failed call raises. Where the server may be looked at first, that is in a thread."""
    if not is_doubtful(cast(grpc.Call, error).details() or ""):
        return failover.failed(channel, error)
    return await asyncio.to_thread(failover.failed, channel, error)


def _begin(channel: Channel, method: str, *questions: Message, **options: Any) -> Any:
    try:
        return channel.call(method)(*questions, **options)
    except grpc.aio.UsageError as error:
        raise closed() from error


def _cut() -> BaseException:
    """What a wait for a cancelled call raises: it is ours that is cancelled, or the call alone, as by `close`."""
    return asyncio.CancelledError() if being_cancelled() else closed()
