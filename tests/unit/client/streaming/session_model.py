"""A server's side of a session as the contract has it, over a link that loses what is on its way when it breaks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headrace._streaming.session import ClientSession
from headrace_proto.v1 import request_pb2, session_pb2, status_pb2
from support.scripted.wire_samples import GENERATING, crc, end_record, text_of

PING_INTERVAL = 10**6
"""Seconds: what goes on must not wait for a ping."""


@dataclass
class Log:
    """One sequence: all its ids, how many are there by now, and whether it has ended."""

    ids: list[int]
    length: int = 0
    ended: bool = False
    tail: str = ""

    @property
    def end(self) -> request_pb2.EndRecord:
        """Its end record."""
        return end_record(self.ids[: self.length], self.tail)


@dataclass
class Channel:
    """One attached reader."""

    number: int
    handle: str
    position: int
    acked: int
    limit: int
    sent_attached: bool = False
    sent_end: bool = False
    sent_hold: bool = False


@dataclass
class ModelServer:
    """Logs, and one session stream at a time. It checks that the client keeps to the contract."""

    logs: dict[str, Log]
    channels: dict[int, Channel] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    down: bool = False
    options_seen: bool = False

    def begin(self) -> None:
        """A new stream."""
        self.channels.clear()
        self.used.clear()
        self.options_seen = False

    def hear(self, request: session_pb2.SessionRequest) -> None:
        """Takes a message."""
        assert request.HasField("options") != self.options_seen, "options belong in the first message alone"
        self.options_seen = True
        for attach in request.attach:
            assert attach.channel not in self.used
            assert attach.channel >= 1
            self.used.add(attach.channel)
            begin = attach.from_position
            assert begin <= self.logs[attach.handle].length
            self.channels[attach.channel] = Channel(attach.channel, attach.handle, begin, begin, begin + attach.window)
        for number in request.detach:
            self.channels.pop(number, None)
        for ack in request.acks:
            channel = self.channels.get(ack.channel)
            if channel is not None:
                assert channel.acked <= ack.position <= channel.position
                channel.acked, channel.limit = ack.position, ack.position + ack.window
                channel.sent_hold = False

    def say(self, most: int) -> session_pb2.SessionResponse:
        """All news, at most so many tokens a channel."""
        answer = session_pb2.SessionResponse()
        for channel in list(self.channels.values()):
            if self.down:
                del self.channels[channel.number]
                status = status_pb2.Status(code=14, message="the engine cannot be reached.")
                answer.errors.add(channel=channel.number, handle=channel.handle, status=status)
            else:
                self._send_news(channel, answer, most)
        return answer

    def hold(self, handle: str) -> None:
        """Closes the windows of a sequence, as a gateway does for a client that is slow to take what it is sent."""
        for channel in self.channels.values():
            if channel.handle == handle and channel.sent_attached:
                channel.limit = channel.position
                channel.sent_hold = False

    def _send_news(self, channel: Channel, answer: session_pb2.SessionResponse, most: int) -> None:
        log = self.logs[channel.handle]
        begin = channel.position
        if not channel.sent_attached:
            channel.sent_attached = True
            answer.attached.add(
                channel=channel.number,
                position=begin,
                checksum=crc(log.ids[:begin]),
                status=GENERATING,
                generated_length=log.length,
            )
        end = min(log.length, channel.limit, begin + most)
        if begin < end:
            step = answer.step
            step.channels.append(channel.number)
            step.positions.append(begin)
            step.counts.append(end - begin)
            step.token_ids.extend(log.ids[begin:end])
            step.texts.append(text_of(log.ids[begin:end]))
            step.checksums.append(crc(log.ids[:end]))
            channel.position = end
        if log.ended and not channel.sent_end:
            channel.sent_end = True
            answer.ends.add(channel=channel.number, end=log.end)
        if channel.position >= channel.limit and not channel.sent_hold and channel.position < log.length:
            channel.sent_hold = True
            answer.windows.add(
                channel=channel.number,
                position=channel.position,
                limit=max(channel.limit, channel.position),
                generated_length=log.length,
            )


class Link:
    """What is on its way between a client's session and the server."""

    def __init__(self, session: ClientSession, server: ModelServer) -> None:
        self.session = session
        self.server = server
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.open = False

    def begin(self) -> None:
        """Opens a stream."""
        self.open = True
        self.session.open()
        self.server.begin()
        opened = session_pb2.SessionOpened(server="model")
        opened.ping_interval.FromSeconds(PING_INTERVAL)
        opened.ping_timeout.FromSeconds(PING_INTERVAL)
        self.down.append(session_pb2.SessionResponse(opened=opened).SerializeToString())

    def cut(self) -> None:
        """Loses the stream with all that is on its way."""
        self.open = False
        self.up.clear()
        self.down.clear()

    def client_speaks(self) -> bool:
        """Whether the client had something to say."""
        message = self.session.outgoing() if self.open else None
        if message is not None:
            self.up.append(message.SerializeToString())
        return message is not None

    def server_hears(self) -> bool:
        """Whether a message arrived there."""
        if not self.up:
            return False
        self.server.hear(session_pb2.SessionRequest.FromString(self.up.popleft()))
        return True

    def server_speaks(self, most: int) -> bool:
        """Whether the server had news."""
        message = self.server.say(most) if self.open else session_pb2.SessionResponse()
        if message.ByteSize():
            self.down.append(message.SerializeToString())
        return bool(message.ByteSize())

    def client_hears(self) -> bool:
        """Whether a message arrived here."""
        if not self.down:
            return False
        self.session.receive(session_pb2.SessionResponse.FromString(self.down.popleft()))
        return True
