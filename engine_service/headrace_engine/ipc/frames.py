"""Encoding of the messages between front half and core, and between the ranks of a model.

A message is one byte for its type, then a MessagePack map of its fields. On a stream, each message is a frame: its
length as four little-endian bytes, then the message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from headrace_engine.ipc.commands import AddSequence, AddSibling, CoreCommand, EndSequence, LoadAdapter, Ping, Shutdown
from headrace_engine.ipc.messages import AdapterLoaded, CoreFailed, CoreMessage, CoreReady, Pong, StepBegun
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.ranks import (
    AllocateRank,
    DropRankAdapter,
    JoinRanks,
    LoadRankAdapter,
    RankAdapterLoaded,
    RankAdapterRead,
    RankAnswer,
    RankCommand,
    RankCopies,
    RankLoaded,
    RankPlan,
    RankSizes,
    RankStep,
    ReadRankAdapter,
)
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.model_types import ModelProgress

Message = CoreCommand | CoreMessage | RankCommand | RankAnswer

_TYPES = {
    1: CorePlan,
    2: AddSequence,
    3: EndSequence,
    4: Ping,
    5: Shutdown,
    6: AddSibling,
    7: LoadAdapter,
    33: RankPlan,
    34: JoinRanks,
    35: AllocateRank,
    36: RankCopies,
    37: RankStep,
    38: ReadRankAdapter,
    39: LoadRankAdapter,
    40: DropRankAdapter,
    65: ModelProgress,
    66: CoreReady,
    67: CoreFailed,
    68: StepOutput,
    69: Pong,
    70: StepBegun,
    71: AdapterLoaded,
    97: RankLoaded,
    98: RankSizes,
    99: RankAdapterLoaded,
    100: RankAdapterRead,
}
_TAGS = {kind: tag for tag, kind in _TYPES.items()}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Message]] = {
    tag: msgspec.msgpack.Decoder(kind) for tag, kind in _TYPES.items()
}
_ENCODER = msgspec.msgpack.Encoder()
_LENGTH = struct.Struct("<I")


class BadMessage(ValueError):
    """Bytes that are not a valid message: an unknown type, or invalid fields."""


def encode(message: Message) -> bytes:
    """Encode one message."""
    return bytes((_TAGS[type(message)],)) + _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    """Decode one message.

    Raises:
        BadMessage: the bytes are not a valid message.
    """
    if not data or data[0] not in _DECODERS:
        raise BadMessage(f"unknown message type {data[0]:#04x}" if data else "empty message")
    try:
        return _DECODERS[data[0]].decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise BadMessage(f"{_TYPES[data[0]].__name__}: {error}") from error


def frame(message: Message) -> bytes:
    """Encode one message as a frame."""
    data = encode(message)
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Splits a stream of bytes into messages, incrementally."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes, and yield the messages that are complete.

        Raises:
            BadMessage: a frame is not a valid message.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            yield decode(body)
