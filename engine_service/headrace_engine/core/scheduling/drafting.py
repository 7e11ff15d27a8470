"""Adds drafted ids to the rows of a step."""

from __future__ import annotations

from itertools import takewhile

from headrace_engine.core.scheduling.drafters import Drafter
from headrace_engine.core.scheduling.schedule import Row, Schedule
from headrace_engine.core.scheduling.tables import BlockTables


class Drafting:
    """Adds drafted ids to steps that only decode.

    Args:
        drafter: guesses the ids.
        most_drafts: maximum number of drafted ids of a sequence in a step.
        most_rows: maximum number of rows of a step, drafted ones included.
    """

    def __init__(self, drafter: Drafter, most_drafts: int, most_rows: int) -> None:
        self._drafter = drafter
        self._most_drafts = most_drafts
        self._most_rows = most_rows

    def add_drafts(self, schedule: Schedule, tables: BlockTables, reserve: int) -> None:
        """Add drafted ids to the rows of a step.

        Args:
            reserve: number of blocks to leave to other sequences.
        """
        left = min(schedule.budget, self._most_rows - len(schedule.rows))
        for number, row in enumerate(schedule.rows):
            if left <= 0:
                return
            share = -(-left // (len(schedule.rows) - number))
            row.drafts = self._drafts(row, min(share, self._most_drafts), tables, reserve)
            left -= len(row.drafts)

    def _drafts(self, row: Row, most: int, tables: BlockTables, reserve: int) -> list[int]:
        sequence = row.sequence
        if not sequence.may_draft:
            return []
        most = tables.make_room(sequence, most, reserve)
        if most <= 0:
            return []
        # Nothing follows an id that ends the sequence.
        ends = (*sequence.request.eos_ids, *sequence.request.stop_ids)
        return list(takewhile(lambda token_id: token_id not in ends, self._drafter.draft(sequence, most)))
