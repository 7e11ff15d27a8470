"""A session whose client stops reading: it takes nothing from the connection until it reads on."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from zlib import crc32

import grpc
from headrace_proto.v1 import session_pb2 as wire
from headrace_proto.v1.request_service_pb2_grpc import RequestServiceStub


class IdleSession:
    """A session on the wire; channels are numbered from 1, in the order of attaches.

    Attributes:
        read: the ids read on each channel.
        held_back: number of windows reported closed, so that a channel gets nothing more before an ack.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", 64 << 20)])
        self._out: SimpleQueue[wire.SessionRequest | None] = SimpleQueue()
        self._answers = RequestServiceStub(self._channel).Session(iter(self._out.get, None))
        self._checksums: list[int] = []
        self._ends: dict[int, wire.SequenceEnd] = {}
        self.read: list[list[int]] = []
        self.held_back = 0
        self._out.put(wire.SessionRequest(options=wire.SessionOptions(client="idle")))

    def attach(self, handles: Sequence[str]) -> None:
        """Attach a channel to each handle, from 0 on."""
        first = len(self.read) + 1
        attaches = [wire.Attach(channel=channel, handle=handle) for channel, handle in enumerate(handles, first)]
        self.read += [[] for _ in handles]
        self._checksums += [0] * len(handles)
        self._out.put(wire.SessionRequest(attach=attaches))

    def read_on(self) -> None:
        """Read until every channel has its whole sequence, and acknowledge where the server waits for it."""
        whole: set[int] = set()
        while len(whole) < len(self.read):
            message = next(self._answers)
            assert not message.errors, message.errors[0]
            self._take_rows(message.step)
            self._ends.update((end.channel, end) for end in message.ends)
            closed = [window for window in message.windows if window.position == window.limit]
            self.held_back += len(closed)
            if closed:
                self._out.put(wire.SessionRequest(acks=[self._ack(window.channel) for window in closed]))
            touched = {*message.step.channels, *(end.channel for end in message.ends)}
            whole |= {channel for channel in touched if self._whole(channel)}

    def close(self) -> None:
        """End the session."""
        self._answers.cancel()
        self._out.put(None)
        self._channel.close()

    def _ack(self, channel: int) -> wire.Ack:
        return wire.Ack(channel=channel, position=len(self.read[channel - 1]))

    def _whole(self, channel: int) -> bool:
        end = self._ends.get(channel)
        if end is None or end.end.position > len(self.read[channel - 1]):
            return False
        assert end.end.checksum == self._checksums[channel - 1]
        return True

    def _take_rows(self, step: wire.StepBatch) -> None:
        start = 0
        for row, channel in enumerate(step.channels):
            ids = step.token_ids[start : start + step.counts[row]]
            start += len(ids)
            known = self.read[channel - 1]
            assert step.positions[row] == len(known), "a row does not follow the one before it"
            known += ids
            encoded = b"".join(token_id.to_bytes(4, "little") for token_id in ids)
            self._checksums[channel - 1] = crc32(encoded, self._checksums[channel - 1])
            assert step.checksums[row] == self._checksums[channel - 1]
