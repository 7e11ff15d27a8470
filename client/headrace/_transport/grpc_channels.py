"""Channels to several addresses, for both of gRPC's Python libraries: `grpc` and `grpc.aio`."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import grpc
from google.protobuf.message import Message
from headrace_proto.pure.addresses import is_local, parse_addresses, plain_reason
from headrace_proto.pure.limits import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES
from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.status import failure, has_status, status_in
from headrace_proto.wire.transport import CallError, client_closed

from headrace._base.fork import ForkGuard
from headrace._transport.methods import CONVERSATIONS, METHODS, Method
from headrace._transport.mismatch import Mismatch
from headrace.errors import InvalidRequestError

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # A peer that vanished is noticed within 30 s; reading gives up 30 s later, which makes a minute in all.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what counts: gRPC waits a minute for the answer to a ping otherwise
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that comes back is found within 2 s (and a fifth, which gRPC adds at random).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Two clients in one process do not share connections, nor each other's pauses.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC's own retries, beside ours, lose a call now and then that begins just as its connection breaks: its status
    # comes, its messages never end, and whoever reads them waits for ever.
    ("grpc.enable_retries", 0),
)

logger = logging.getLogger(__name__)

_fork_guard = ForkGuard("gRPC")


class Channels:
    """The channels of one transport. Streams have their own, so that no number of them keeps a call from going out.

    Args:
        library: `grpc` or `grpc.aio`.
        addresses: "host:port", several separated by commas, the preferred one first.
        api_key: sent with each call; None: none. Without encryption it is for this machine alone: elsewhere there is a
            warning in the log.
        credentials: of the connections; None: no encryption.

    Raises:
        ValueError: an address cannot be parsed.
        RuntimeError: this process was forked from one that used gRPC, which does not survive that.
    """

    def __init__(
        self, library: Any, addresses: str, api_key: str | None, credentials: grpc.ChannelCredentials | None
    ) -> None:
        targets = parse_addresses(addresses)
        _fork_guard.enter()
        far = [target for target in targets if not is_local(target)]
        if api_key and credentials is None and far:
            logger.warning("api_key is sent to %s unencrypted: pass credentials to encrypt the connection", far[0])
        self.metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self.calls = Failover(library, targets, credentials)
        self.streams = Failover(library, targets, credentials)


class Channel:
    """A connection to one address, and its calls."""

    def __init__(self, library: Any, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.target = target
        options = list(CHANNEL_OPTIONS)
        if credentials is None:
            self._channel = library.insecure_channel(target, options)
        else:
            self._channel = library.secure_channel(target, credentials, options)
        self._callables: dict[str, Any] = {}

    def call(self, name: str) -> Any:
        """What makes calls of this name. After `close` gRPC raises ValueError there."""
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

    def close(self) -> Any:
        """Ends its calls and the connection; of `grpc.aio` that is to be awaited."""
        return self._channel.close()


class Failover:
    """The channel in use among those of several addresses; another one from the first failure to reach it on."""

    def __init__(self, library: Any, targets: list[str], credentials: grpc.ChannelCredentials | None) -> None:
        self._library = library
        self._targets = targets
        self._credentials = credentials
        self._channels: list[Channel | None] = [None] * len(targets)
        self._mismatches = {target: Mismatch(target, credentials) for target in targets}
        self._current = 0
        self._closed = False
        self._lock = threading.Lock()
        self._wrong: dict[str, str] = {}

    def channel(self) -> Channel:
        """The channel for the next call; connects when it is first used."""
        with self._lock:
            if self._closed:
                raise closed()
            channel = self._channels[self._current]
            if channel is None:
                channel = Channel(self._library, self._targets[self._current], self._credentials)
                self._channels[self._current] = channel
            return channel

    def failed(self, channel: Channel, error: grpc.RpcError) -> CallError:
        """What a failed call raises; moves on to the next address if this one cannot serve.

        Where the server cannot be reached it may be looked at for some seconds, to find out whether it ever can.
        """
        call = cast(grpc.Call, error)
        if call.code() is grpc.StatusCode.UNAVAILABLE and not self._closed and not has_status(call.trailing_metadata()):
            self._note(channel.target, self._mismatches[channel.target].reason(call.details() or ""))
        if self._closed:
            # gRPC says of a call that its own side cut no more than that it was cancelled.
            return closed()
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            self.leave(channel)
        with self._lock:
            next_target = self._targets[self._current]
            wrong = dict(self._wrong)
        if call.code() is grpc.StatusCode.UNAVAILABLE and len(wrong) == len(self._targets):
            return CallError(_never(wrong))
        status = _status_of(call, channel.target)
        status.message += "".join(f"; {target}: {reason}" for target, reason in wrong.items())
        return CallError(status, instead="" if next_target == channel.target else next_target)

    def _note(self, target: str, reason: str) -> None:
        with self._lock:
            self._wrong.pop(target, None)
            if reason:
                self._wrong[target] = reason

    def leave(self, channel: Channel) -> None:
        """Moves on to the next address, if it is still this one that is in use."""
        with self._lock:
            # Many calls fail with one connection; only the first of them moves on.
            if self._channels[self._current] is channel:
                self._current = (self._current + 1) % len(self._targets)

    def close(self) -> list[Any]:
        """Ends all; later calls fail. What each channel's `close` answered."""
        with self._lock:
            self._closed = True
            channels = [channel for channel in self._channels if channel is not None]
        return [channel.close() for channel in channels]


def _never(wrong: dict[str, str]) -> Status:
    """None of the addresses can ever be connected to."""
    message = "; ".join(f"no connection to {target}: {reason}" for target, reason in wrong.items())
    return failure("UNAUTHENTICATED", "TLS_MISMATCH", message)


def _status_of(call: grpc.Call, target: str) -> Status:
    if (status := status_in(call.trailing_metadata())) is not None:
        return status
    code, message = call.code(), call.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        message = f"no answer from {target}: {plain_reason(message, target)}"
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"no answer from {target} in time: {message}"
    return Status(code=code.value[0], message=message)


def check_size(request: Message) -> None:
    """Refuses what gRPC would refuse without saying why. Raises InvalidRequestError."""
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES:
        raise InvalidRequestError(
            f"the message has {size} bytes, more than the limit of {MAX_REQUEST_BYTES}: shorten the prompt"
        )


def closed() -> CallError:
    """What a call raises after `close`."""
    return CallError(client_closed())
