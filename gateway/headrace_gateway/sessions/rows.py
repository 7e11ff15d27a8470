"""Rows of step batches that wait for a client.

Hot path: every token of every request passes here, so keep the Python operations per row few.
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
        position: position of the first token.
        ids: token ids, at least one.
        text: text of the tokens.
        checksum: checksum up to the last token.
        details: logprobs and the like, with row number 0.
        size: maximum bytes of the encoded row.
    """

    position: int
    ids: array[int]
    text: str
    checksum: int
    details: RowDetails | None
    size: int

    def join(self, row: Row, limit: int) -> bool:
        """Append the following row, if both fit into `limit` bytes and neither has details.

        Returns:
            True if the row was appended.
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
    """Yield each row with its channel."""
    for number, channel in enumerate(columns.channels):
        ids = array("I", columns.ids(number))
        text, details = columns.texts[number], columns.details(number)
        size = _ROW_BYTES + len(ids) * _ID_BYTES + len(text.encode())
        if details is not None:
            details.row = 0
            size += details.ByteSize()
        yield channel, Row(columns.positions[number], ids, text, columns.checksums[number], details, size)


def add_row(step: StepBatch, channel: int, row: Row) -> None:
    """Append a row to a batch."""
    if row.details is not None:
        add_details(step, len(step.channels), row.details)
    step.channels.append(channel)
    step.positions.append(row.position)
    step.counts.append(len(row.ids))
    step.token_ids.extend(row.ids)
    step.texts.append(row.text)
    step.checksums.append(row.checksum)
