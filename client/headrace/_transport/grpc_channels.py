"""gRPC channels to several addresses, with failover, for both `grpc` and `grpc.aio`."""

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
    # A peer that vanished is noticed within 30 s; readers give up 30 s later.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # The one that takes effect; its default is a minute.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted server is found within 2 s, and up to a fifth more, which gRPC adds at random.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Two clients in one process share neither connections nor backoff.
    ("grpc.use_local_subchannel_pool", 1),
    # With gRPC's own retries, in addition to ours, a call that begins just as its connection breaks is sometimes lost:
    # its status arrives, but reading its messages waits for ever.
    ("grpc.enable_retries", 0),
)

logger = logging.getLogger(__name__)

_fork_guard = ForkGuard("gRPC")


class Channels:
    """The channels of one transport. Streams have separate ones, so that open streams never hold up a unary call.

    Args:
        library: `grpc` or `grpc.aio`.
        addresses: "host:port", or several separated by commas, in order of preference.
        api_key: API key sent with each call; None: none. Sending it unencrypted to another machine logs a warning.
        credentials: credentials of the connections; None: no encryption.

    Raises:
        ValueError: an address cannot be parsed.
        RuntimeError: this process was forked from one that used gRPC, which does not work after a fork.
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
    """A gRPC channel to one address, and its callables."""

    def __init__(self, library: Any, target: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.target = target
        options = list(CHANNEL_OPTIONS)
        if credentials is None:
            self._channel = library.insecure_channel(target, options)
        else:
            self._channel = library.secure_channel(target, credentials, options)
        self._callables: dict[str, Any] = {}

    def call(self, name: str) -> Any:
        """Return the callable of a method. After `close` it raises ValueError."""
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
        """Close the channel and its calls; with `grpc.aio`, await the result."""
        return self._channel.close()


class Failover:
    """Selects one of several addresses, and the next one after a failure to reach it. It owns their channels."""

    def __init__(self, library: Any, targets: list[str], credentials: grpc.ChannelCredentials | None) -> None:
        self._library = library
        self._targets = targets
        self._credentials = credentials
        self._channels: list[Channel | None] = [None] * len(targets)
        self._mismatches = {target: Mismatch(target, credentials) for target in targets}
        self._current = 0
        self._left: list[Channel] = []  # Calls on them go on: they are closed with the others.
        self._closed = False
        self._lock = threading.Lock()  # Guards all that changes: calls come from any thread.
        self._wrong: dict[str, str] = {}

    def channel(self) -> Channel:
        """Return the channel for the next call; it connects when it is first used."""
        with self._lock:
            if self._closed:
                raise closed()
            channel = self._channels[self._current]
            if channel is None:
                channel = Channel(self._library, self._targets[self._current], self._credentials)
                self._channels[self._current] = channel
            return channel

    def failed(self, channel: Channel, error: grpc.RpcError) -> CallError:
        """Return the exception of a failed call, and select the next address if this one cannot be reached.

        May probe the server for some seconds to find out whether a connection is possible at all.
        """
        call = cast(grpc.Call, error)
        if call.code() is grpc.StatusCode.UNAVAILABLE and not self._closed and not has_status(call.trailing_metadata()):
            self._note(channel.target, self._mismatches[channel.target].reason(call.details() or ""))
        if self._closed:
            # gRPC reports a call that `close` ended as cancelled.
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
        """Select the next address, if this one is still selected."""
        with self._lock:
            # Many calls fail with one connection; only the first of them selects the next address.
            if self._channels[self._current] is channel:
                self._current = (self._current + 1) % len(self._targets)

    def reconnect(self) -> None:
        """Make the next call over a new connection, to the next address. Calls in progress go on."""
        with self._lock:
            channel, self._channels[self._current] = self._channels[self._current], None
            self._left += [] if channel is None else [channel]
            self._current = (self._current + 1) % len(self._targets)

    def close(self) -> list[Any]:
        """Close all channels, so that later calls fail; return the results of their `close`."""
        with self._lock:
            self._closed = True
            channels = [channel for channel in (*self._left, *self._channels) if channel is not None]
        return [channel.close() for channel in channels]


def _never(wrong: dict[str, str]) -> Status:
    """Return the status for addresses none of which can be connected to."""
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
    """Raise InvalidRequestError for a message above the size limit, which gRPC rejects without a useful message."""
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES:
        raise InvalidRequestError(
            f"the message has {size} bytes, more than the limit of {MAX_REQUEST_BYTES}: shorten the prompt"
        )


def closed() -> CallError:
    """Return the exception of a call after `close`."""
    return CallError(client_closed())
