"""Carries calls over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from headrace._transport.grpc_channels import Channel, Channels, Failover, check_size, closed


class GrpcTransport:
    """Calls over gRPC to one of several servers; when it cannot be reached, to the next one.

    Streams have connections of their own, so that no number of open streams keeps a call from going out.

    Args:
        addresses: "host:port", several separated by commas, the preferred one first.
        api_key: sent with each call as "authorization: Bearer KEY". Without credentials that is unencrypted: a
            warning in the log says so, unless the server is on this machine.
        credentials: of the connection, from `grpc.ssl_channel_credentials`; None: no encryption.

    Raises:
        ValueError: an address cannot be parsed.
        RuntimeError: this process was forked from one that used gRPC, which does not survive that.
    """

    def __init__(
        self, addresses: str, *, api_key: str | None = None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        channels = Channels(grpc, addresses, api_key, credentials)
        self._metadata, self._calls, self._streams = channels.metadata, channels.calls, channels.streams

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """One question, one answer. Raises CallError."""
        check_size(request)
        channel = self._calls.channel()
        try:
            answer = channel.call(method)(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._calls.failed(channel, error) from None
        except ValueError as error:
            raise closed() from error
        return cast(Message, answer)

    def stream(self, method: str, request: Message, *, timeout: float | None) -> GrpcStream:
        """One question, many answers. Does not wait for the first."""
        check_size(request)
        channel = self._streams.channel()
        try:
            answers = channel.call(method)(request, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            raise closed() from error
        return GrpcStream(answers, channel, self._streams)

    def session(self, method: str, *, timeout: float | None = None) -> GrpcChannel:
        """Many questions, many answers. Waits for nothing."""
        channel, questions = self._streams.channel(), _Questions()
        try:
            answers = channel.call(method)(questions, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            raise closed() from error
        return GrpcChannel(questions, answers, channel, self._streams)

    def close(self) -> None:
        """Ends all calls and connections."""
        self._calls.close()
        self._streams.close()


class GrpcStream:
    """The answers of one streaming call."""

    def __init__(self, answers: Any, channel: Channel, failover: Failover) -> None:
        self._answers = answers
        self._channel = channel
        self._failover = failover

    def __iter__(self) -> Iterator[Message]:
        """Itself."""
        return self

    def __next__(self) -> Message:
        """The next answer. Raises CallError."""
        try:
            return cast(Message, next(self._answers))
        except grpc.RpcError as error:
            raise self._failover.failed(self._channel, error) from None

    def cancel(self) -> None:
        """Ends the call."""
        self._answers.cancel()


class GrpcChannel(GrpcStream):
    """One call with many questions and many answers."""

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
        """Sends a question; does not wait for it to arrive."""
        self._questions.put(message)

    def half_close(self) -> None:
        """No more questions follow; answers still come."""
        self._questions.close()

    def cancel(self, *, lost: bool = False) -> None:
        """Ends the call; `lost`: the next one goes to another address."""
        if lost:
            self._failover.leave(self._channel)
        super().cancel()
        self._questions.close()


class _Questions:
    """What is to be sent, for the thread in which gRPC takes it from here."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Message | None] = SimpleQueue()

    def put(self, message: Message) -> None:
        self._waiting.put(message)

    def close(self) -> None:
        # What is put after this stays there: the thread has ended.
        self._waiting.put(None)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if (message := self._waiting.get()) is None:
            raise StopIteration
        return message
