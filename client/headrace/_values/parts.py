"""Tokens of one sequence as they arrive, from a session's row or from a message of a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_proto.v1 import request_pb2, session_pb2

Details = request_pb2.GeneratedElements | session_pb2.RowDetails
"""What carries `logprobs` and `tensors`."""


@dataclass(slots=True)
class Part:
    """Consecutive tokens of one sequence. Plain, since there is one for nearly every token.

    Attributes:
        position: place of the first token.
        ids: at least one, but for a message that only tells something else.
        text: theirs.
        before: CRC-32 over all ids before them.
        after: CRC-32 over all ids up to the last of them.
        details: log-probabilities and tensors; None: neither.
    """

    position: int
    ids: list[int]
    text: str
    before: int
    after: int
    details: Details | None = None


def part_of(elements: request_pb2.GeneratedElements) -> Part:
    """The tokens of a message."""
    return Part(
        elements.position,
        list(elements.token_ids),
        elements.text,
        elements.checksum_before,
        elements.checksum_after,
        elements if elements.HasField("logprobs") or elements.tensors else None,
    )
