"""A client's side of a session stream, without input or output: it checks order, gaps and checksums as it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_proto.v1 import session_pb2 as wire
from support.scripted.session_engine import checksum, text_of

TERMINAL = (4, 5, 6)


@dataclass
class Reading:
    """What one channel told."""

    handle: str
    start: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    attached: bool = False
    statuses: list[int] = field(default_factory=list)
    end: object = None
    error: object = None
    window: object = None

    @property
    def position(self) -> int:
        return self.start + len(self.tokens)

    @property
    def whole(self) -> bool:
        return self.end is not None and self.position == self.end.position


class Readings:
    """All channels of a session. What it gets must be right, or the test fails."""

    def __init__(self) -> None:
        self.of: dict[int, Reading] = {}
        self.gone: set[int] = set()
        self.opened: list[wire.SessionOpened] = []
        self.pongs: list[int] = []
        self.closing = False
        self.sizes: list[int] = []
        self._channel = 0

    def attach(self, handle, from_position=0, window=None, **more) -> wire.Attach:
        self._channel += 1
        self.of[self._channel] = Reading(handle, from_position)
        return wire.Attach(channel=self._channel, handle=handle, from_position=from_position, window=window, **more)

    def detach(self, channel) -> int:
        del self.of[channel]
        self.gone.add(channel)
        return channel

    def take(self, message: wire.SessionResponse) -> None:
        self.sizes.append(message.ByteSize())
        assert message.HasField("opened") is (not self.opened)
        if message.HasField("opened"):
            self.opened.append(message.opened)
        for item in message.attached:
            if reading := self._of(item.channel):
                assert not reading.attached
                assert item.position == reading.position
                reading.attached = True
        self._rows(message.step)
        for item in message.status_changes:
            if reading := self._of(item.channel):
                assert reading.attached
                assert item.status not in TERMINAL
                reading.statuses.append(item.status)
        for item in message.ends:
            if reading := self._of(item.channel):
                assert reading.attached
                assert reading.end is None
                reading.end = item.end
        for item in message.errors:
            if reading := self._of(item.channel):
                assert (item.handle, reading.error) == (reading.handle, None)
                reading.error = item.status
                self.gone.add(item.channel)
        for item in message.windows:
            if reading := self._of(item.channel):
                assert reading.attached
                assert item.position == reading.position
                reading.window = item
        if message.HasField("pong"):
            self.pongs.append(message.pong.number)
        self.closing |= message.HasField("closing")

    def _of(self, channel) -> Reading | None:
        assert channel in self.of or channel in self.gone
        return self.of.get(channel)

    def _rows(self, step: wire.StepBatch) -> None:
        details = {detail.row: detail for detail in step.details}
        ids = iter(step.token_ids)
        for row, channel in enumerate(step.channels):
            taken = [next(ids) for _ in range(step.counts[row])]
            reading = self._of(channel)
            if reading is None:
                continue
            assert reading.attached
            assert reading.error is None
            assert step.positions[row] == reading.position
            assert step.texts[row] == "".join(map(text_of, taken))
            reading.tokens += taken
            if reading.start == 0:
                assert step.checksums[row] == checksum(reading.tokens)
            if row in details:
                reading.logprobs += details[row].logprobs.token_logprobs
            reading.window = None
        assert next(ids, None) is None
