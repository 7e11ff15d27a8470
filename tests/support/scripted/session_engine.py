"""A small correct engine's side of a session stream, without I/O: logs, channels, windows, ends."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from zlib import crc32

from headrace_proto.v1 import request_pb2, status_pb2
from headrace_proto.v1 import session_pb2 as wire

from support.scripted.engine_answers import FINISHED, GENERATING, packed

INIT = request_pb2.GENERATE_STATUS_INIT


def text_of(token: int) -> str:
    return f"<{token}>"


def checksum(tokens) -> int:
    return crc32(array("I", tokens).tobytes())


@dataclass(eq=False)
class Log:
    """One sequence. Its tokens are sent in rows of at most `row` tokens."""

    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    released: bool = False
    row: int = 4
    logprobs: bool = False

    @property
    def status(self):
        return FINISHED if self.ended else GENERATING if self.tokens else INIT

    def end(self) -> request_pb2.EndRecord:
        return request_pb2.EndRecord(status=FINISHED, position=len(self.tokens), checksum=checksum(self.tokens))


@dataclass(eq=False)
class Channel:
    """One attached reader."""

    number: int
    handle: str
    index: int
    log: Log
    position: int
    acked: int
    window: int
    answered: bool = False
    status: int = INIT
    ended: bool = False
    closed_sent: bool = False

    @property
    def limit(self) -> int:
        return self.acked + self.window


class EngineSide:
    """One stream as the engine sees it. Fails the test if its peer violates the protocol.

    Args:
        find: returns the log of a handle and an index, or the reason of a failure.
        pongs: it answers pings.
        owner: of every sequence that is attached.
    """

    def __init__(self, find, pongs: bool = True, owner: str = "") -> None:
        self._find = find
        self._owner = owner
        self._pongs = pongs
        self.open = True
        self.over = False
        self.channels: dict[int, Channel] = {}
        self.detached: list[int] = []
        self.pings: list[int] = []
        self.attaches: list[wire.Attach] = []
        self.acks: list[wire.Ack] = []
        self.wants_load = self.wants_cache = self.wants_usage = False
        self.closing = False
        self.loads: deque[wire.ModelLoad] = deque()
        self.usage: deque[wire.OwnerUsage] = deque()
        self._used: set[int] = set()
        self._errors: deque[wire.HandleError] = deque()
        self._opened = False
        self._pong: int | None = None

    def hear(self, request: wire.SessionRequest) -> None:
        assert request.HasField("options") is not self._opened
        self._opened = True
        self.wants_load |= request.options.load
        self.wants_cache |= request.options.HasField("cache_events")
        self.wants_usage |= request.options.usage
        for attach in request.attach:
            self._attach(attach)
        for number in request.detach:
            self.channels.pop(number, None)
            self.detached.append(number)
        for ack in request.acks:
            self.acks.append(ack)
            channel = self.channels.get(ack.channel)
            if channel is not None:
                assert channel.acked <= ack.position <= channel.position, ack
                assert ack.HasField("window")
                channel.acked, channel.window, channel.closed_sent = ack.position, ack.window, False
        if request.HasField("ping"):
            self.pings.append(request.ping.number)
            self._pong = request.ping.number if self._pongs else None

    def _attach(self, attach: wire.Attach) -> None:
        assert attach.channel > 0
        assert attach.channel not in self._used
        assert attach.owner == self._owner
        self._used.add(attach.channel)
        self.attaches.append(attach)
        found = self._find(attach.handle, attach.index)
        if isinstance(found, Log) and attach.from_position > len(found.tokens):
            found = "POSITION_OUT_OF_RANGE"
        if isinstance(found, str):
            self._errors.append(_error(attach.channel, attach.handle, attach.index, found))
            return
        window = attach.window if attach.HasField("window") else 4096
        position = attach.from_position
        self.channels[attach.channel] = Channel(
            attach.channel, attach.handle, attach.index, found, position, position, window
        )

    def say(self) -> wire.SessionResponse | None:
        """Return a message with everything new; None if there is nothing."""
        text = wire.SessionResponse()
        for channel in list(self.channels.values()):
            if channel.log.released:
                del self.channels[channel.number]
                text.errors.append(_error(channel.number, channel.handle, channel.index, "UNKNOWN_REQUEST"))
            else:
                self._send_news(channel, text)
        while self._errors:
            text.errors.append(self._errors.popleft())
        while self.wants_load and self.loads:
            text.load.append(self.loads.popleft())
        while self.wants_usage and self.usage:
            text.usage.append(self.usage.popleft())
        if self._pong is not None:
            text.pong.number, self._pong = self._pong, None
        if self.closing:
            text.closing.SetInParent()
            self.closing = False
        return text if text.ByteSize() else None

    def _send_news(self, channel: Channel, text: wire.SessionResponse) -> None:
        log = channel.log
        if not channel.answered:
            channel.answered, channel.status = True, log.status
            text.attached.add(
                channel=channel.number,
                position=channel.position,
                checksum=checksum(log.tokens[: channel.position]),
                status=log.status,
                generated_length=len(log.tokens),
            )
        while channel.position < min(channel.limit, len(log.tokens)):
            self._row(channel, text.step)
        if log.status != channel.status and not log.ended:
            channel.status = log.status
            text.status_changes.add(channel=channel.number, status=log.status)
        if log.ended and not channel.ended:
            channel.ended = True
            text.ends.add(channel=channel.number, end=log.end())
        if channel.position >= channel.limit and not channel.closed_sent:
            channel.closed_sent = True
            text.windows.add(
                channel=channel.number,
                position=channel.position,
                limit=channel.limit,
                generated_length=len(log.tokens),
            )

    def _row(self, channel: Channel, step: wire.StepBatch) -> None:
        tokens = channel.log.tokens
        stop = min(channel.position + channel.log.row, channel.limit, len(tokens))
        ids = tokens[channel.position : stop]
        if channel.log.logprobs:
            step.details.add(row=len(step.channels)).logprobs.token_logprobs.extend([-float(token) for token in ids])
        step.channels.append(channel.number)
        step.positions.append(channel.position)
        step.counts.append(len(ids))
        step.token_ids.extend(ids)
        step.texts.append("".join(map(text_of, ids)))
        step.checksums.append(checksum(tokens[:stop]))
        channel.position = stop


def _error(channel: int, handle: str, index: int, reason: str) -> wire.HandleError:
    code = 11 if reason == "POSITION_OUT_OF_RANGE" else 5
    own = "self/" + handle.partition("/")[2]
    info = status_pb2.ErrorInfo(reason=reason, domain="headrace", metadata={"handle": own})
    status = status_pb2.Status(code=code, message=reason, details=[packed("ErrorInfo", info)])
    return wire.HandleError(channel=channel, handle=own, index=index, status=status)
