"""Splitting the columns of a step into rows."""

from __future__ import annotations

from collections.abc import Iterator

from headrace_proto.v1.session_pb2 import StepBatch
from headrace_proto.wire.session_rows import Columns

from headrace._values.parts import Part
from headrace.errors import InternalServerError


def rows(step: StepBatch) -> Iterator[tuple[int, Part]]:
    """Yield channel and tokens of each row. `before` is left at 0: it is the checksum after the channel's last row.

    Raises:
        InternalServerError: the columns do not have matching lengths.
    """
    try:
        columns = Columns(step)
    except ValueError as error:
        raise InternalServerError(f"the server sent {error}.") from None
    each = zip(columns.channels, columns.positions, columns.texts, columns.checksums, strict=True)
    for row, (channel, position, text, checksum) in enumerate(each):
        yield channel, Part(position, columns.ids(row), text, 0, checksum, columns.details(row))
