"""Carries calls over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError, Message

from headrace.addresses import parse_addresses
from headrace.errors import InvalidRequestError
from headrace.fork import ForkGuard
from headrace.methods import CONVERSATIONS, METHODS, Method
from headrace.transport import CallError, client_closed
from headrace.v1 import status_pb2

MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest message, both ways; servers have the same limit."""

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished is noticed within 30 s; reading gives up 30 s later, which makes a minute in all.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that comes back is found within 2 s (and a fifth, which gRPC adds at random).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Two clients in one process do not share connections, nor each other's pauses.
    ("grpc.use_local_subchannel_pool", 1),
)

_STATUS_TRAILER = "grpc-status-details-bin"
_fork_guard = ForkGuard("gRPC")


class GrpcTransport:
    """Calls over gRPC to one of several servers; when it cannot be reached, to the next one.

    Streams have connections of their own, so that no number of open streams keeps a call from going out.

    Args:
        addresses: "host:port", several separated by commas, the preferred one first.
        api_key: sent with each call as "authorization: Bearer KEY".
        credentials: of the connection, from `grpc.ssl_channel_credentials`; None: no encryption.

    Raises:
        ValueError: an address cannot be parsed.
        RuntimeError: this process was forked from one that used gRPC, which does not survive that.
    """

    def __init__(
        self, addresses: str, *, api_key: str | None = None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        targets = parse_addresses(addresses)
        _fork_guard.enter()
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._calls = _Failover(targets, credentials)
        self._streams = _Failover(targets, credentials)

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """One question, one answer. Raises CallError."""
        _check_size(request)
        channel = self._calls.channel()
        try:
            answer = channel.call(method)(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._calls.failed(channel, error) from None
        except ValueError as error:
            raise _closed() from error
        return cast(Message, answer)

    def stream(self, method: str, request: Message, *, timeout: float | None) -> GrpcStream:
        """One question, many answers. Does not wait for the first."""
        _check_size(request)
        channel = self._streams.channel()
        try:
            answers = channel.call(method)(request, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            raise _closed() from error
        return GrpcStream(answers, channel, self._streams)

    def session(self, method: str, *, timeout: float | None = None) -> GrpcChannel:
        """Many questions, many answers. Waits for nothing."""
        channel, questions = self._streams.channel(), _Questions()
        try:
            answers = channel.call(method)(questions, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            raise _closed() from error
        return GrpcChannel(questions, answers, channel, self._streams)

    def close(self) -> None:
        """Ends all calls and connections."""
        self._calls.close()
        self._streams.close()


class GrpcStream:
    """The answers of one streaming call."""

    def __init__(self, answers: Any, channel: _Channel, failover: _Failover) -> None:
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

    def __init__(self, questions: _Questions, answers: Any, channel: _Channel, failover: _Failover) -> None:
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


class _Channel:
    """A connection to one address, and its calls."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.target = target
        options = list(CHANNEL_OPTIONS)
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(target, credentials, options)
        self._callables: dict[str, Any] = {}

    def call(self, name: str) -> Any:
        """What makes calls of this name. gRPC raises ValueError there after `close`."""
        if name not in self._callables:
            method = METHODS.get(name) or CONVERSATIONS[name]
            self._callables[name] = self._maker(method)(
                f"/{name}",
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return self._callables[name]

    def _maker(self, method: Method) -> Any:
        if method.converses:
            return self._channel.stream_stream
        return self._channel.unary_stream if method.streams else self._channel.unary_unary

    def close(self) -> None:
        self._channel.close()


class _Failover:
    """The channel in use among those of several addresses; another one from the first failure to reach it on."""

    def __init__(self, targets: list[str], credentials: grpc.ChannelCredentials | None) -> None:
        self._targets = targets
        self._credentials = credentials
        self._channels: list[_Channel | None] = [None] * len(targets)
        self._current = 0
        self._closed = False
        self._lock = threading.Lock()

    def channel(self) -> _Channel:
        """The channel for the next call; connects when it is first used."""
        with self._lock:
            if self._closed:
                raise _closed()
            channel = self._channels[self._current]
            if channel is None:
                channel = _Channel(self._targets[self._current], self._credentials)
                self._channels[self._current] = channel
            return channel

    def failed(self, channel: _Channel, error: grpc.RpcError) -> CallError:
        """What a failed call raises; moves on to the next address if this one cannot serve."""
        call = cast(grpc.Call, error)
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            self.leave(channel)
        return CallError(_status_of(call, channel.target))

    def leave(self, channel: _Channel) -> None:
        """Moves on to the next address, if it is still this one that is in use."""
        with self._lock:
            # Many calls fail with one connection; only the first of them moves on.
            if self._channels[self._current] is channel:
                self._current = (self._current + 1) % len(self._targets)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels = [channel for channel in self._channels if channel is not None]
        for channel in channels:
            channel.close()


def _status_of(call: grpc.Call, target: str) -> status_pb2.Status:
    for key, value in call.trailing_metadata() or ():
        if key == _STATUS_TRAILER:
            status = status_pb2.Status()
            try:
                status.ParseFromString(cast(bytes, value))
            except DecodeError:
                break
            return status
    code, message = call.code(), call.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        message = f"no answer from {target}: {message}"
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"no answer from {target} in time: {message}"
    return status_pb2.Status(code=code.value[0], message=message)


def _check_size(request: Message) -> None:
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise InvalidRequestError(
            f"the message has {size} bytes, and a call carries at most {MAX_MESSAGE_BYTES}: shorten the prompt."
        )


def _closed() -> CallError:
    return CallError(client_closed())
