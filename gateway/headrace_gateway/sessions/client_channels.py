"""What one client's session stands for: its channels, and what it may say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from headrace_proto.pure.limits import MAX_HANDLE_BYTES, PORTION
from headrace_proto.pure.used_numbers import UsedNumbers
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway import status
from headrace_gateway.owners import refuse_owner
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.outbox import Outbox
from headrace_gateway.sessions.reader import Reader, Upstream
from headrace_gateway.status import CallError

MAX_CHANNELS = 24_576
"""Channels that a session may have at a time: what one may hold of the MAX_READERS of an engine's stream."""

_CROWD = 4096


class ClientBook:
    """The books of one session, from its first message to its end.

    Args:
        route: the stream to the engine that a handle names; raises CallError if there is none.
        limits: of the session.
        on_more: called when there is something to send.

    Attributes:
        outbox: what waits to be sent.
        attaches: that were heard so far.
    """

    def __init__(self, route: Callable[[str], Upstream], limits: SessionLimits, on_more: Callable[[], None]) -> None:
        self.outbox = Outbox(limits, on_more)
        self.attaches = 0
        self._route = route
        self._readers: dict[int, Reader] = {}
        self._used = UsedNumbers()

    @property
    def done(self) -> bool:
        """Everything that the channels can still tell was sent."""
        return not self.outbox and all(reader.done for reader in self._readers.values())

    @property
    def channels(self) -> int:
        """Channels that are attached."""
        return len(self._readers)

    @property
    def crowded(self) -> bool:
        """So many failed attaches wait to be told that the client is to be read no further."""
        return self.outbox.channels > len(self._readers) + _CROWD

    def hear(self, request: wire.SessionRequest) -> None:
        """Does what one message says; as `hear_in_portions`, without a stop."""
        for _ in self.hear_in_portions(request):
            pass

    def hear_in_portions(self, request: wire.SessionRequest) -> Iterator[None]:
        """Does what one message says, and stops after each portion, so that others have a turn.

        Raises:
            CallError: it breaks the rules, so the session ends.
        """
        for number, attach in enumerate(request.attach, 1):
            self._attach(attach, f"attach[{number - 1}]")
            if number % PORTION == 0:
                yield
        for number, channel in enumerate(request.detach, 1):
            self._detach(channel)
            if number % PORTION == 0:
                yield
        for number, ack in enumerate(request.acks, 1):
            self._acknowledge(ack, f"acks[{number - 1}]")
            if number % PORTION == 0:
                yield
        if request.HasField("ping"):
            self.outbox.put_pong(request.ping.number)

    def close(self) -> None:
        """The session is over: nobody reads any more; as `close_in_portions`, without a stop."""
        for _ in self.close_in_portions():
            pass

    def close_in_portions(self) -> Iterator[None]:
        """The session is over: nobody reads any more. It stops after each portion, so that others have a turn."""
        while self._readers:
            for channel in list(islice(self._readers, PORTION)):
                self._detach(channel)
            yield

    def put_rows(self, message: wire.SessionResponse) -> None:
        """Takes a message of rows of any of its channels."""
        for channel, position in self.outbox.put_rows(message).items():
            if (reader := self._readers.get(channel)) is not None:
                reader.park(position)

    def ended(self, channel: int) -> None:
        """A channel is no more."""
        self._readers.pop(channel, None)

    def _attach(self, attach: wire.Attach, path: str) -> None:
        self.attaches += 1
        self._check(attach, path)
        try:
            self._refuse(attach)
            upstream = self._route(attach.handle)
            upstream.check_share(self)
        except CallError as error:
            failed = wire.HandleError(channel=attach.channel, handle=attach.handle, index=attach.index)
            failed.status.CopyFrom(error.status)
            self.outbox.put_error(failed)
        else:
            self._readers[attach.channel] = Reader(attach, self, upstream)

    def _check(self, attach: wire.Attach, path: str) -> None:
        if not self._used.use(attach.channel):
            text = f"is {attach.channel}, which was used before or is 0; allowed: each number from 1 once in a stream"
            raise status.invalid_field(f"{path}.channel", text)
        if (length := len(attach.handle.encode())) > MAX_HANDLE_BYTES:
            raise status.invalid_field(f"{path}.handle", f"has {length} bytes; allowed: {MAX_HANDLE_BYTES}")

    def _refuse(self, attach: wire.Attach) -> None:
        """Refuses what this attach alone is about; the others of the session go on."""
        refuse_owner(attach)
        if len(self._readers) >= MAX_CHANNELS:
            raise status.full_session(MAX_CHANNELS)

    def _detach(self, channel: int) -> None:
        if (reader := self._readers.pop(channel, None)) is not None:
            reader.upstream.detach(reader.upstream_channel)
        self.outbox.forget(channel)

    def _acknowledge(self, ack: wire.Ack, path: str) -> None:
        """An unknown channel's end may have crossed this."""
        reader = self._readers.get(ack.channel)
        if reader is None:
            return
        if not reader.acked <= ack.position <= reader.next:
            allowed = f"allowed: {reader.acked} to {reader.next}, from the last ack to what was sent"
            raise status.invalid_field(f"{path}.position", f"is {ack.position}; {allowed}")
        reader.acknowledge(ack.position, ack.window if ack.HasField("window") else None)
