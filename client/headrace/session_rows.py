"""Takes the columns of a step apart into rows."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import InternalServerError
from headrace.v1 import request_pb2, session_pb2


def rows(step: session_pb2.StepBatch) -> Iterator[tuple[int, request_pb2.GeneratedElements]]:
    """Channel and tokens of each row. `checksum_before` is left out: it is the row's before.

    Raises:
        InternalServerError: the columns do not fit together.
    """
    _check(step)
    details = {one.row: one for one in step.details}
    begin, ids = 0, list(step.token_ids)
    columns = zip(step.channels, step.positions, step.counts, step.texts, step.checksums, strict=True)
    for row, (channel, position, count, text, checksum) in enumerate(columns):
        part = request_pb2.GeneratedElements(
            position=position, token_ids=ids[begin : begin + count], text=text, checksum_after=checksum
        )
        if row in details:
            _add_details(part, details[row])
        begin += count
        yield channel, part


def _add_details(part: request_pb2.GeneratedElements, details: session_pb2.RowDetails) -> None:
    if details.HasField("logprobs"):
        part.logprobs.CopyFrom(details.logprobs)
    part.tensors.extend(details.tensors)


def _check(step: session_pb2.StepBatch) -> None:
    columns = (step.channels, step.positions, step.counts, step.texts, step.checksums)
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1 or sum(step.counts) != len(step.token_ids) or 0 in step.counts:
        raise InternalServerError(
            f"the server sent a step whose columns have {lengths} entries, and {len(step.token_ids)} ids for "
            f"{sum(step.counts)}."
        )
