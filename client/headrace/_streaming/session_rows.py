"""Splitting the columns of a step into rows."""

from __future__ import annotations

from collections.abc import Iterator

from headrace_proto.v1.session_pb2 import StepBatch
from headrace_proto.wire.session_rows import Columns

from headrace._values.details import Details
from headrace.errors import InternalServerError

Row = tuple[int, int, list[int], str, int, Details | None]
"""Channel, position, ids, text, checksum after the ids, and details: what `Arrived.append` takes of one channel."""


def rows(step: StepBatch) -> Iterator[Row]:
    """Return the rows of a step.

    Raises:
        InternalServerError: the columns do not have matching lengths.
    """
    try:
        columns = Columns(step)
    except ValueError as error:
        raise InternalServerError(f"the server sent {error}.") from None
    return zip(
        columns.channels,
        columns.positions,
        columns.all_ids(),
        columns.texts,
        columns.checksums,
        columns.all_details(),
        strict=True,
    )
