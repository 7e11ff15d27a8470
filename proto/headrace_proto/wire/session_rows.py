"""Converts between rows and columns of a session's step batches, which are columns on the wire.

Hot path: every token of every request passes here, so keep the Python operations per row few.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeVar

from headrace_proto.v1.session_pb2 import RowDetails, StepBatch

T = TypeVar("T")


class Columns:
    """A step batch as lists. What a relay may leave as it is becomes one when it is first asked for.

    Args:
        step: the batch.

    Attributes:
        channels, positions, counts: of each row.

    Raises:
        ValueError: its columns differ in length.
    """

    def __init__(self, step: StepBatch) -> None:
        self.channels: list[int] = list(step.channels)
        self.positions: list[int] = list(step.positions)
        self.counts: list[int] = list(step.counts)
        self._step = step
        self._starts = list(accumulate(self.counts, initial=0))
        self._single = len(step.token_ids) == len(self.channels)
        self._details = {detail.row: detail for detail in step.details}
        self._check(step)

    @cached_property
    def texts(self) -> list[str]:
        """Text of each row."""
        return list(self._step.texts)

    @cached_property
    def checksums(self) -> list[int]:
        """Checksum after each row."""
        return list(self._step.checksums)

    @cached_property
    def _ids(self) -> list[int]:
        return list(self._step.token_ids)

    def ids(self, row: int) -> list[int]:
        """Return the token ids of a row."""
        return self._ids[self._starts[row] : self._starts[row + 1]]

    def all_ids(self) -> list[list[int]]:
        """Return the token ids of each row."""
        if self._single:
            return [[token_id] for token_id in self._ids]
        return [self._ids[start:end] for start, end in pairwise(self._starts)]

    def all_details(self) -> list[RowDetails | None]:
        """Return the details of each row, as `details`."""
        if not self._details:
            return [None] * len(self.channels)
        return [self.details(row) for row in range(len(self.channels))]

    def details(self, row: int) -> RowDetails | None:
        """Return the details of a row as a copy: a reference would keep alive the whole message that it came in."""
        if (found := self._details.get(row)) is None:
            return None
        own = RowDetails()
        own.CopyFrom(found)
        return own

    def pick(self, rows: Sequence[int], channels: Sequence[int]) -> StepBatch:
        """Return the rows of these numbers, in ascending order, under these channels."""
        every = len(rows) == len(self.channels)

        def of(column: list[T]) -> list[T]:
            return column if every else [column[row] for row in rows]

        picked = StepBatch(
            channels=channels,
            positions=of(self.positions),
            counts=of(self.counts),
            token_ids=of(self._ids) if self._single else [token for row in rows for token in self.ids(row)],
            texts=of(self.texts),
            checksums=of(self.checksums),
        )
        for index, row in enumerate(rows) if self._details else ():
            if row in self._details:
                add_details(picked, index, self._details[row])
        return picked

    def _check(self, step: StepBatch) -> None:
        rows, ids = len(self.channels), len(step.token_ids)
        lengths = [len(column) for column in (self.channels, self.positions, self.counts, step.texts, step.checksums)]
        if len(set(lengths)) > 1 or self._starts[-1] != ids:
            raise ValueError(f"a step batch whose columns have {lengths} entries, and {ids} ids for {self._starts[-1]}")
        if 0 in self.counts:
            raise ValueError("a step batch that has a row without tokens")
        if any(row >= rows for row in self._details):
            raise ValueError("a step batch that has details of a row that it lacks")


def add_details(step: StepBatch, row: int, details: RowDetails) -> None:
    """Put a copy of a row's details into a batch."""
    added = step.details.add()
    added.CopyFrom(details)
    added.row = row
