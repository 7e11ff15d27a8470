"""Takes the columns of a step apart into rows."""

from __future__ import annotations

from collections.abc import Iterator

from headrace_proto.v1 import session_pb2

from headrace.errors import InternalServerError
from headrace.parts import Part


def rows(step: session_pb2.StepBatch) -> Iterator[tuple[int, Part]]:
    """Channel and tokens of each row. The checksum before a row is left at 0: it is the row's before.

    Raises:
        InternalServerError: the columns do not fit together.
    """
    _check(step)
    details = {one.row: one for one in step.details}
    begin, ids = 0, list(step.token_ids)
    columns = zip(step.channels, step.positions, step.counts, step.texts, step.checksums, strict=True)
    for row, (channel, position, count, text, checksum) in enumerate(columns):
        end = begin + count
        yield channel, Part(position, ids[begin:end], text, 0, checksum, _own(details[row]) if row in details else None)
        begin = end


def _own(details: session_pb2.RowDetails) -> session_pb2.RowDetails:
    """A copy: a part would keep all of the message that it came in."""
    own = session_pb2.RowDetails()
    own.CopyFrom(details)
    return own


def _check(step: session_pb2.StepBatch) -> None:
    columns = (step.channels, step.positions, step.counts, step.texts, step.checksums)
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1 or sum(step.counts) != len(step.token_ids) or 0 in step.counts:
        raise InternalServerError(
            f"the server sent a step whose columns have {lengths} entries, and {len(step.token_ids)} ids for "
            f"{sum(step.counts)}."
        )
