"""Details of tokens as they arrive, with a row of a session or a message of a stream."""

from __future__ import annotations

from headrace_proto.v1 import request_pb2, session_pb2

Details = request_pb2.GeneratedElements | session_pb2.RowDetails
"""Messages that carry `logprobs` and `tensors`."""


def details_of(elements: request_pb2.GeneratedElements) -> Details | None:
    """Return the details in a message; None: it has none."""
    return elements if elements.HasField("logprobs") or elements.tensors else None
