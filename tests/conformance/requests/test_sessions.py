"""The session stream as it is on the wire, from an engine and through a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from zlib import crc32

import grpc
import pytest
from headrace import Client
from headrace_proto.v1 import session_pb2 as wire
from headrace_proto.v1.request_service_pb2_grpc import RequestServiceStub
from headrace_proto.v1.status_pb2 import ErrorInfo
from support.clocks.waiting import LIMIT
from support.contract.places import MODEL, Place


class Stream:
    """One session, and what it told by channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._out: SimpleQueue[wire.SessionRequest | None] = SimpleQueue()
        self._answers = RequestServiceStub(channel).Session(iter(self._out.get, None), timeout=LIMIT)
        self.ids: dict[int, list[int]] = {}
        self.texts: dict[int, str] = {}
        self.checksums: dict[int, int] = {}
        self.attached: dict[int, wire.Attached] = {}
        self.ends: dict[int, wire.SequenceEnd] = {}
        self.errors: dict[int, wire.HandleError] = {}
        self.windows: dict[int, wire.WindowState] = {}
        self.pongs: list[int] = []
        self.say(options=wire.SessionOptions(client="test"))

    def say(self, **fields: object) -> None:
        self._out.put(wire.SessionRequest(**fields))  # type: ignore[arg-type]

    def until(self, holds: object) -> None:
        while not holds():  # type: ignore[operator]
            self._take(next(self._answers))

    def whole(self, channel: int) -> bool:
        """All tokens and the end have come."""
        return channel in self.ends and len(self.ids.get(channel, [])) == self.ends[channel].end.position

    def close(self) -> None:
        self._out.put(None)
        for answer in self._answers:
            self._take(answer)

    def _take(self, message: wire.SessionResponse) -> None:
        self.attached.update((item.channel, item) for item in message.attached)
        self._rows(message.step)
        self.ends.update((item.channel, item) for item in message.ends)
        self.errors.update((item.channel, item) for item in message.errors)
        self.windows.update((item.channel, item) for item in message.windows)
        if message.HasField("pong"):
            self.pongs.append(message.pong.number)

    def _rows(self, step: wire.StepBatch) -> None:
        ids = iter(step.token_ids)
        for row, channel in enumerate(step.channels):
            known = self.ids.setdefault(channel, [])
            assert step.positions[row] == self.attached[channel].position + len(known)
            known.extend(next(ids) for _ in range(step.counts[row]))
            self.texts[channel] = self.texts.get(channel, "") + step.texts[row]
            self.checksums[channel] = step.checksums[row]
        assert next(ids, None) is None


@pytest.fixture
def stream(place: Place) -> Iterator[Stream]:
    if place.path == "inprocess":
        pytest.skip("its sessions are seen through the client")
    with grpc.insecure_channel(place.target) as channel:  # type: ignore[arg-type]
        stream = Stream(channel)
        yield stream
        stream.close()


def _ids(client: Client, handle: str) -> list[int]:
    """The ids of an ended sequence, read another way."""
    client.sync_request(handle)
    queue = client.open_queue(handle)
    elements = queue.Get()
    assert elements is not None
    return elements.ids_from_generate


def test_one_stream_reads_many_sequences_to_their_ends(client: Client, stream: Stream) -> None:
    handles = [client.start_request(MODEL, ids=[5, 6, seed], max_new_tokens=20, seed=seed)[0] for seed in range(1, 9)]
    stream.say(attach=[wire.Attach(channel=number, handle=handle) for number, handle in enumerate(handles, 1)])
    stream.until(lambda: all(map(stream.whole, range(1, 9))))
    for number, handle in enumerate(handles, 1):
        assert stream.ids[number] == _ids(client, handle)
        encoded = b"".join(token.to_bytes(4, "little") for token in stream.ids[number])
        assert stream.checksums[number] == crc32(encoded) == stream.ends[number].end.checksum


def test_a_window_holds_back_what_is_not_acknowledged(client: Client, stream: Stream) -> None:
    """The end is told all the same; the rest comes with the ack."""
    handle, _ = client.start_request(MODEL, ids=[5, 6, 7], max_new_tokens=20, ignore_eos=True)
    stream.say(attach=[wire.Attach(channel=1, handle=handle, window=8)])
    stream.until(lambda: 1 in stream.ends and 1 in stream.windows)
    assert len(stream.ids[1]) == 8
    assert (stream.windows[1].position, stream.windows[1].limit) == (8, 8)
    stream.say(acks=[wire.Ack(channel=1, position=8, window=100)])
    stream.until(lambda: len(stream.ids[1]) == 20)
    assert stream.ids[1] == _ids(client, handle)


def test_a_reader_begins_where_it_wants(client: Client, stream: Stream) -> None:
    handle, _ = client.start_request(MODEL, ids=[5, 6, 7], max_new_tokens=20, ignore_eos=True)
    ids = _ids(client, handle)
    stream.say(attach=[wire.Attach(channel=3, handle=handle, from_position=12)])
    stream.until(lambda: 3 in stream.ends and len(stream.ids.get(3, [])) == 8)
    assert stream.ids[3] == ids[12:]
    assert stream.attached[3].checksum == crc32(b"".join(token.to_bytes(4, "little") for token in ids[:12]))


def test_failures_are_items_and_touch_no_other(client: Client, stream: Stream) -> None:
    handle, _ = client.start_request(MODEL, ids=[5, 6, 7], max_new_tokens=4, ignore_eos=True)
    engine, instance, _ = handle.split("/")
    wrong = {
        1: (f"{engine}/{instance}/{'0' * 32}", 0, 0, "UNKNOWN_REQUEST"),
        2: (f"{engine}/{'f' * len(instance)}/{'0' * 32}", 0, 0, "ENGINE_LOST"),
        3: (handle, 0, 999, "POSITION_OUT_OF_RANGE"),
        4: (handle, 7, 0, "UNKNOWN_REQUEST"),
    }
    for channel, (bad, index, position, _) in wrong.items():
        stream.say(attach=[wire.Attach(channel=channel, handle=bad, index=index, from_position=position)])
    stream.say(attach=[wire.Attach(channel=5, handle=handle)], ping=wire.Ping(number=3))
    stream.until(lambda: len(stream.errors) == 4 and stream.whole(5))
    for channel, (bad, index, _, reason) in wrong.items():
        error = stream.errors[channel]
        assert (error.handle, error.index) == (bad, index)
        assert ErrorInfo.FromString(error.status.details[0].value).reason == reason
    stream.until(lambda: stream.pongs)
    assert stream.pongs == [3]


def test_a_release_ends_the_channel(client: Client, stream: Stream) -> None:
    handle, _ = client.start_request(MODEL, ids=[5, 6, 7], max_new_tokens=4, ignore_eos=True)
    stream.say(attach=[wire.Attach(channel=1, handle=handle)])
    stream.until(lambda: 1 in stream.ends)
    client.release_request(handle)
    stream.until(lambda: 1 in stream.errors)
    assert ErrorInfo.FromString(stream.errors[1].status.details[0].value).reason == "UNKNOWN_REQUEST"
