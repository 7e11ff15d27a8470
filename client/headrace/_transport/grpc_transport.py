"""The gRPC transport of the synchronous client."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from headrace._transport.grpc_channels import Channel, Channels, Failover, check_size, closed
from headrace._transport.traces import traced


class GrpcTransport:
    """A transport over gRPC to one of several servers; if it cannot be reached, to the next one.

    Streams have separate connections, so that open streams never hold up a unary call.

    Args:
        addresses: "host:port", or several separated by commas, in order of preference.
        api_key: API key sent with each call as "authorization: Bearer KEY". Sending it without credentials to another
            machine logs a warning.
        credentials: credentials from `grpc.ssl_channel_credentials`; None: no encryption.

    Raises:
        ValueError: an address cannot be parsed.
        RuntimeError: this process was forked from one that used gRPC, which does not work after a fork.
    """

    def __init__(
        self, addresses: str, *, api_key: str | None = None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        channels = Channels(grpc, addresses, api_key, credentials)
        self._metadata, self._calls, self._streams = channels.metadata, channels.calls, channels.streams

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """Make a unary call and return its response. Raises CallError."""
        check_size(request)
        channel = self._calls.channel()
        try:
            with traced(method, self._metadata) as metadata:
                answer = channel.call(method)(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise self._calls.failed(channel, error) from None
        except ValueError as error:
            raise closed() from error
        return cast(Message, answer)

    def stream(self, method: str, request: Message, *, timeout: float | None) -> GrpcStream:
        """Open a call that streams responses, without waiting for the first."""
        check_size(request)
        channel = self._streams.channel()
        try:
            with traced(method, self._metadata) as metadata:
                answers = channel.call(method)(request, timeout=timeout, metadata=metadata)
        except ValueError as error:
            raise closed() from error
        return GrpcStream(answers, channel, self._streams)

    def session(self, method: str, *, timeout: float | None = None) -> GrpcChannel:
        """Open a call that streams both ways, without waiting."""
        channel, questions = self._streams.channel(), _Questions()
        try:
            answers = channel.call(method)(questions, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            raise closed() from error
        return GrpcChannel(questions, answers, channel, self._streams)

    def reconnect(self) -> None:
        """Make the next unary call over a new connection, to the next address; those in progress go on."""
        self._calls.reconnect()

    def close(self) -> None:
        """Close all calls and connections."""
        self._calls.close()
        self._streams.close()


class GrpcStream:
    """The responses of one streaming call."""

    def __init__(self, answers: Any, channel: Channel, failover: Failover) -> None:
        self._answers = answers
        self._channel = channel
        self._failover = failover

    def __iter__(self) -> Iterator[Message]:
        """Return the stream itself."""
        return self

    def __next__(self) -> Message:
        """The next answer. Raises CallError."""
        try:
            return cast(Message, next(self._answers))
        except grpc.RpcError as error:
            raise self._failover.failed(self._channel, error) from None

    def cancel(self) -> None:
        """Cancel the call."""
        self._answers.cancel()


class GrpcChannel(GrpcStream):
    """One call that streams both ways."""

    def __init__(self, questions: _Questions, answers: Any, channel: Channel, failover: Failover) -> None:
        super().__init__(answers, channel, failover)
        self._questions = questions

    def __next__(self) -> Message:
        """The next answer. Raises CallError."""
        try:
            return super().__next__()
        except BaseException:
            self._questions.close()
            raise

    def send(self, message: Message) -> None:
        """Queue a message to be sent."""
        self._questions.put(message)

    def half_close(self) -> None:
        """End the sending direction; responses still arrive."""
        self._questions.close()

    def cancel(self, *, lost: bool = False) -> None:
        """Cancel the call; `lost`: the next one goes to another address."""
        if lost:
            self._failover.leave(self._channel)
        super().cancel()
        self._questions.close()


class _Questions:
    """The queue of messages to send. A thread of gRPC iterates over it until it is closed."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Message | None] = SimpleQueue()

    def put(self, message: Message) -> None:
        self._waiting.put(message)

    def close(self) -> None:
        # Messages put after this are never sent: the thread has ended.
        self._waiting.put(None)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if (message := self._waiting.get()) is None:
            raise StopIteration
        return message
