"""Consecutive tokens as they arrive, from a row of a session or a message of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_proto.v1 import request_pb2, session_pb2

Details = request_pb2.GeneratedElements | session_pb2.RowDetails
"""Messages that carry `logprobs` and `tensors`."""


@dataclass(slots=True)
class Part:
    """Consecutive tokens of one sequence. Not frozen, as that is slow to construct and there is one per step.

    Attributes:
        position: position of the first token.
        ids: token ids; empty for a message that carries only other information.
        text: text of the tokens.
        before: CRC-32 of all ids before them.
        after: CRC-32 of all ids up to and including them.
        details: logprobs and tensors; None: neither.
    """

    position: int
    ids: list[int]
    text: str
    before: int
    after: int
    details: Details | None = None


def part_of(elements: request_pb2.GeneratedElements) -> Part:
    """Return the tokens of a message."""
    return Part(
        elements.position,
        list(elements.token_ids),
        elements.text,
        elements.checksum_before,
        elements.checksum_after,
        elements if elements.HasField("logprobs") or elements.tensors else None,
    )
