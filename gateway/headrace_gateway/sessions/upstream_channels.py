"""State of one stream to an engine: its channels, the messages to send, and the readers of its answers."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from headrace_proto.pure.shares import Shares
from headrace_proto.v1 import session_pb2 as wire
from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.session_rows import Columns

from headrace_gateway import status
from headrace_gateway.sessions.reader import Downstream, Reader
from headrace_gateway.sessions.waiting import framed_bytes

MAX_READERS = 32_768
"""Maximum channels of one stream. Engines allow twice as many, as a resuming reader has two for a moment."""

_PORTION = 256
"""Channels of a broken stream that are ended at a time, before other tasks have a turn."""


class UpstreamChannels:
    """The channels of one stream, from its opening until it breaks.

    Channels belong to their readers, which attach and detach them; the stream ends those that fail. Rows are handed
    over to the clients' sessions; an engine's message with rows of one session alone becomes that session's message.

    Args:
        engine: name of the engine in the gateway's list.
        message_bytes: maximum bytes of a message to the engine; a single item may be longer.
        on_more: called when something waits to be sent.

    Attributes:
        engine: name of the engine.
    """

    def __init__(self, engine: str, message_bytes: int, on_more: Callable[[], None]) -> None:
        self.engine = engine
        self._message_bytes = message_bytes
        self._on_more = on_more
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        self._shares: Shares[Downstream] = Shares(MAX_READERS)
        self._channels = 0
        self._requests: deque[wire.SessionRequest] = deque()
        self._last_bytes = 0
        self._acks: dict[int, wire.Ack] = {}

    @property
    def readers(self) -> int:
        """Number of attached channels."""
        return len(self._readers)

    def check_share(self, session: Downstream) -> None:
        """Refuse a session that has used up its share of the stream.

        Raises:
            CallError: QUEUE_FULL.
        """
        if not self._shares.can_take(session):
            what = f'sequences of engine "{self.engine}"'
            raise status.full_stream(self.engine, self._shares.refusal(session, what, "this session reads"))

    def attach(self, reader: Reader, from_position: int, window: int) -> int:
        """Attach a sequence for a reader. Return the channel."""
        self._channels += 1
        self._readers[self._channels] = reader
        self._shares.take(reader.session)
        attach = wire.Attach(
            channel=self._channels,
            handle=reader.handle,
            index=reader.index,
            from_position=from_position,
            window=window,
            owner=reader.owner,
        )
        self._request(framed_bytes(attach)).attach.append(attach)
        return self._channels

    def detach(self, channel: int) -> None:
        """Detach a channel. What the engine still sends for it is dropped."""
        self._acks.pop(channel, None)
        if self._forget(channel) is not None:
            self._request(5).detach.append(channel)

    def acknowledge(self, channel: int, position: int, window: int) -> None:
        """Set the window of a channel."""
        self._acks[channel] = wire.Ack(channel=channel, position=position, window=window)
        self._on_more()

    def ping(self, number: int) -> None:
        """Queue a ping."""
        self._request(10).ping.number = number

    def take(self) -> wire.SessionRequest | None:
        """Return the next message to the engine; None if nothing waits."""
        if not self._requests and not self._acks:
            return None
        request = self._requests.popleft() if self._requests else wire.SessionRequest()
        if not self._requests:  # acks come after the attaches that they belong to
            request.acks.extend(self._acks.values())
            self._acks.clear()
        return request

    def deliver(self, response: wire.SessionResponse) -> None:
        """Deliver a message of the engine to the readers. Takes ownership: parts of it, or all of it, may be sent on.

        Raises:
            ValueError: the step batch is malformed.
        """
        for attached in response.attached:
            if (reader := self._readers.get(attached.channel)) is not None:
                reader.on_attached(attached)
        if response.HasField("step"):
            self._deliver_rows(response)
        for change in response.status_changes:
            if (reader := self._readers.get(change.channel)) is not None:
                reader.on_status(change)
        for end in response.ends:
            if (reader := self._readers.get(end.channel)) is not None:
                reader.on_end(end)
        for error in response.errors:
            if (reader := self._forget(error.channel)) is not None:
                reader.on_error(error.status)
        for window in response.windows:
            if (reader := self._readers.get(window.channel)) is not None:
                reader.on_window(window)

    def fail(self, failure: Status) -> None:
        """End all channels with a failure, at once."""
        for _ in self.fail_in_portions(failure):
            pass

    def fail_in_portions(self, failure: Status) -> Iterator[None]:
        """End all channels with a failure, and yield after each portion, so that other tasks have a turn."""
        while self._readers:  # readers may still resume here between portions
            for channel in list(islice(self._readers, _PORTION)):
                self._end(channel, failure)
            yield

    def _end(self, channel: int, failure: Status) -> None:
        # A status for each reader, which writes the engine's name into it.
        own = Status()
        own.CopyFrom(failure)
        if (reader := self._forget(channel)) is not None:
            reader.on_error(own)

    def _forget(self, channel: int) -> Reader | None:
        reader = self._readers.pop(channel, None)
        if reader is not None:
            self._shares.give_back(reader.session)
        return reader

    def _deliver_rows(self, response: wire.SessionResponse) -> None:
        """Hand each session its rows of a step, as one batch."""
        columns = Columns(response.step)
        shares: dict[Downstream, tuple[list[int], list[int]]] = {}
        each = zip(columns.channels, columns.positions, columns.counts, strict=True)
        for row, (channel, position, count) in enumerate(each):
            reader = self._readers.get(channel)
            if reader is None or reader.parked:
                continue
            if position != reader.next:
                self._lost_step(channel, position)
                continue
            # Counted before they are handed over: if the session drops some, it parks the reader at the first of those.
            reader.next = position + count
            share = shares.get(reader.session)
            if share is None:
                share = shares[reader.session] = ([], [])
            share[0].append(row)
            share[1].append(reader.channel)
        for session, (rows, channels) in shares.items():
            session.put_rows(_share(response, columns, rows, channels))

    def _lost_step(self, channel: int, position: int) -> None:
        """End a channel for which the engine left a gap or sent tokens twice."""
        reader = self._readers[channel]
        self.detach(channel)
        reader.on_error(status.out_of_step(self.engine, position, reader.next).status)

    def _request(self, size: int) -> wire.SessionRequest:
        """Return a queued message with space left for `size` bytes."""
        if not self._requests or self._last_bytes + size > self._message_bytes:
            self._requests.append(wire.SessionRequest())
            self._last_bytes = 0
        self._last_bytes += size
        self._on_more()
        return self._requests[-1]


def _share(
    response: wire.SessionResponse, columns: Columns, rows: Sequence[int], channels: Sequence[int]
) -> wire.SessionResponse:
    """Return rows of a step as a message: the engine's own, if it has nothing else."""
    if len(rows) == len(columns.channels) and len(response.ListFields()) == 1:
        # Changed in place, since nobody else is sent a part of it.
        response.step.channels[:] = channels
        return response
    return wire.SessionResponse(step=columns.pick(rows, channels))
