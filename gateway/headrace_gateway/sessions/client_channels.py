"""State of one client's session: its channels, and the checks of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from headrace_proto.pure.limits import MAX_HANDLE_BYTES, PORTION
from headrace_proto.pure.portions import in_portions
from headrace_proto.pure.used_numbers import UsedNumbers
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway import status
from headrace_gateway.access.callers import ANYONE, Caller
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.outbox import Outbox
from headrace_gateway.sessions.reader import Reader, Upstream
from headrace_gateway.status import CallError

MAX_CHANNELS = 24_576
"""Maximum channels of a session at a time: the most that one may hold of an engine stream's MAX_READERS."""

_MAX_FAILED = 4096
"""Maximum failed attaches that may wait to be reported before the client is read no further."""


class ClientChannels:
    """The channels of one session, from its first message to its end.

    Owns the session's readers and its outbox. Each reader has a channel in an engine's stream, which `_detach` gives
    back; a channel that ended upstream is gone there already, so `ended` only forgets its reader.

    Args:
        route: returns the upstream of the engine that a handle names; raises CallError if there is none.
        limits: of the session.
        on_more: called when something waits to be sent.
        caller: the session's client.

    Attributes:
        outbox: rows and items that wait to be sent.
        attaches: number of attaches received so far.
    """

    def __init__(
        self,
        route: Callable[[str], Upstream],
        limits: SessionLimits,
        on_more: Callable[[], None],
        caller: Caller = ANYONE,
    ) -> None:
        self.outbox = Outbox(limits, on_more)
        self.attaches = 0
        self._route = route
        self._caller = caller
        self._readers: dict[int, Reader] = {}
        self._used = UsedNumbers()

    @property
    def done(self) -> bool:
        """True if nothing waits to be sent, and all sequences ended and were delivered."""
        return not self.outbox and all(reader.done for reader in self._readers.values())

    @property
    def count(self) -> int:
        """Number of attached channels."""
        return len(self._readers)

    @property
    def backlogged(self) -> bool:
        """True if so many failed attaches wait to be reported that the client must not be read further."""
        return self.outbox.channels > len(self._readers) + _MAX_FAILED

    def apply(self, request: wire.SessionRequest) -> None:
        """Apply a message at once."""
        for _ in self.apply_in_portions(request):
            pass

    def apply_in_portions(self, request: wire.SessionRequest) -> Iterator[None]:
        """Apply a message, and yield after each portion, so that other sessions have a turn.

        Raises:
            CallError: the message is invalid, so the session ends.
        """
        yield from in_portions(request.attach, "attach", self._attach)
        yield from in_portions(request.detach, "detach", lambda channel, _: self._detach(channel))
        yield from in_portions(request.acks, "acks", self._acknowledge)
        if request.HasField("ping"):
            self.outbox.put_pong(request.ping.number)

    def close(self) -> None:
        """Detach all channels at once."""
        for _ in self.close_in_portions():
            pass

    def close_in_portions(self) -> Iterator[None]:
        """Detach all channels, and yield after each portion, so that other sessions have a turn."""
        while self._readers:
            for channel in list(islice(self._readers, PORTION)):
                self._detach(channel)
            yield

    def put_rows(self, message: wire.SessionResponse) -> None:
        """Take ownership of a message of rows. Readers whose rows the outbox had to drop are parked."""
        for channel, position in self.outbox.put_rows(message).items():
            if (reader := self._readers.get(channel)) is not None:
                reader.park(position)

    def ended(self, channel: int) -> None:
        """Forget a channel that ended upstream."""
        # The stream has forgotten the channel already, so there is nothing to detach.
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
            # The reader has its channel upstream now, until `_detach` gives it back or the stream ends it.
            self._readers[attach.channel] = Reader(attach, self, upstream)

    def _check(self, attach: wire.Attach, path: str) -> None:
        if not self._used.use(attach.channel):
            text = f"= {attach.channel} was used before or is 0; allowed: each number from 1 once in a stream"
            raise status.invalid_field(f"{path}.channel", text)
        if (length := len(attach.handle.encode())) > MAX_HANDLE_BYTES:
            raise status.invalid_field(f"{path}.handle", f"has {length} bytes; allowed: {MAX_HANDLE_BYTES}")

    def _refuse(self, attach: wire.Attach) -> None:
        """Refuse this attach alone; the other channels of the session go on."""
        self._caller.sign(attach)
        if len(self._readers) >= MAX_CHANNELS:
            raise status.full_session(MAX_CHANNELS)

    def _detach(self, channel: int) -> None:
        if (reader := self._readers.pop(channel, None)) is not None:
            reader.upstream.detach(reader.upstream_channel)
        self.outbox.forget(channel)

    def _acknowledge(self, ack: wire.Ack, path: str) -> None:
        """Apply an ack. One of an unknown channel is ignored: the channel's end may have crossed it."""
        reader = self._readers.get(ack.channel)
        if reader is None:
            return
        if not reader.acked <= ack.position <= reader.next:
            allowed = f"allowed: {reader.acked} (the last ack) to {reader.next} (the tokens sent)"
            raise status.invalid_field(f"{path}.position", f"= {ack.position}; {allowed}")
        reader.acknowledge(ack.position, ack.window if ack.HasField("window") else None)
