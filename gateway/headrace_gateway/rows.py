"""Rows of step batches, which are columns: picked and put together again.

Every token of every request passes here, so there are few Python operations a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from headrace_proto.v1.session_pb2 import RowDetails, StepBatch

T = TypeVar("T")

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


class Columns:
    """A step batch as lists.

    Args:
        step: the batch.

    Raises:
        ValueError: its columns do not fit together.
    """

    def __init__(self, step: StepBatch) -> None:
        self.channels: list[int] = list(step.channels)
        self.positions: list[int] = list(step.positions)
        self.counts: list[int] = list(step.counts)
        self._texts: list[str] = list(step.texts)
        self._checksums: list[int] = list(step.checksums)
        self._ids: list[int] = list(step.token_ids)
        self._starts = list(accumulate(self.counts, initial=0))
        self._single = len(self._ids) == len(self.channels)
        self._details = {detail.row: detail for detail in step.details}
        self._check()

    def pick(self, rows: Sequence[int], channels: Sequence[int]) -> StepBatch:
        """The rows of those numbers, which ascend, under these channels."""
        every = len(rows) == len(self.channels)

        def of(column: list[T]) -> list[T]:
            return column if every else [column[row] for row in rows]

        piece = StepBatch(
            channels=channels,
            positions=of(self.positions),
            counts=of(self.counts),
            token_ids=of(self._ids) if self._single else self._ids_of(rows),
            texts=of(self._texts),
            checksums=of(self._checksums),
        )
        for place, row in enumerate(rows) if self._details else ():
            if row in self._details:
                _add_details(piece, place, self._details[row])
        return piece

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Each row, with its channel before it."""
        for number, channel in enumerate(self.channels):
            ids = array("I", self._ids[self._starts[number] : self._starts[number + 1]])
            text, details = self._texts[number], self._details.get(number)
            size = _ROW_BYTES + len(ids) * _ID_BYTES + len(text.encode())
            if details is not None:
                size += details.ByteSize()
                details = RowDetails.FromString(details.SerializeToString())  # a part would keep the whole batch
            yield channel, Row(self.positions[number], ids, text, self._checksums[number], details, size)

    def _ids_of(self, rows: Sequence[int]) -> list[int]:
        return [token for row in rows for token in self._ids[self._starts[row] : self._starts[row + 1]]]

    def _check(self) -> None:
        rows = len(self.channels)
        columns = (self.positions, self.counts, self._texts, self._checksums)
        if any(len(column) != rows for column in columns) or self._starts[-1] != len(self._ids):
            raise ValueError("the columns of a step batch differ in length")
        if 0 in self.counts:
            raise ValueError("a step batch has a row without tokens")
        if any(row >= rows for row in self._details):
            raise ValueError("a step batch has details of a row that it lacks")


def add_row(step: StepBatch, channel: int, row: Row) -> None:
    """Puts a row at the end of a batch."""
    if row.details is not None:
        _add_details(step, len(step.channels), row.details)
    step.channels.append(channel)
    step.positions.append(row.position)
    step.counts.append(len(row.ids))
    step.token_ids.extend(row.ids)
    step.texts.append(row.text)
    step.checksums.append(row.checksum)


def _add_details(step: StepBatch, place: int, details: RowDetails) -> None:
    added = step.details.add()
    added.CopyFrom(details)
    added.row = place
