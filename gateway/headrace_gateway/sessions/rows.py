"""Rows of step batches that wait for a client.

Every token of every request passes here, so there are few Python operations a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from headrace_proto.v1.session_pb2 import RowDetails, StepBatch
from headrace_proto.wire.session_rows import Columns, add_details

_ROW_BYTES = 21
_ID_BYTES = 3


@dataclass(slots=True)
class Row:
    """Consecutive tokens of one channel.

    Attributes:
        position: of the first one.
        ids: at least one.
        text: theirs.
        checksum: up to the last one.
        details: what else belongs to them, numbered for no batch.
        size: bytes that it takes at most when encoded.
    """

    position: int
    ids: array[int]
    text: str
    checksum: int
    details: RowDetails | None
    size: int

    def join(self, row: Row, limit: int) -> bool:
        """Appends the tokens that follow, if that makes at most `limit` bytes and neither row has details.

        Returns:
            Whether it did.
        """
        size = self.size + row.size - _ROW_BYTES
        if size > limit or self.details is not None or row.details is not None:
            return False
        self.ids.extend(row.ids)
        self.text += row.text
        self.checksum = row.checksum
        self.size = size
        return True


def rows_of(columns: Columns) -> Iterator[tuple[int, Row]]:
    """Each row, with its channel before it."""
    for number, channel in enumerate(columns.channels):
        ids = array("I", columns.ids(number))
        text, details = columns.texts[number], columns.details(number)
        size = _ROW_BYTES + len(ids) * _ID_BYTES + len(text.encode())
        if details is not None:
            details.row = 0
            size += details.ByteSize()
        yield channel, Row(columns.positions[number], ids, text, columns.checksums[number], details, size)


def add_row(step: StepBatch, channel: int, row: Row) -> None:
    """Puts a row at the end of a batch."""
    if row.details is not None:
        add_details(step, len(step.channels), row.details)
    step.channels.append(channel)
    step.positions.append(row.position)
    step.counts.append(len(row.ids))
    step.token_ids.extend(row.ids)
    step.texts.append(row.text)
    step.checksums.append(row.checksum)
