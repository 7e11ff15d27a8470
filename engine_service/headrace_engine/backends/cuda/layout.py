"""Where the arrays of a step lie among the numbers that are sent to the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_engine.models.ops import Batch


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the largest step.

    Attributes:
        rows: number of tokens.
        sequences: number of sequences, each with at most one row of logits.
        blocks: entries per block table.
        block_size: tokens per block.
    """

    rows: int
    sequences: int
    blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the arrays of a step, which equal steps share. Those of a captured step have room for more.

    Attributes:
        rows: number of rows.
        single: number of sequences with one row, which come first.
        several: number of sequences behind those.
        sequences: number of all.
        logits: number of rows whose logits are computed.
        lists: lists of decode tasks.
    """

    rows: int
    single: int
    several: int
    sequences: int
    logits: int
    lists: int

    @property
    def places(self) -> dict[str, slice]:
        """Where each array is, in the order of sending: all but the last, `tasks`, by their sizes."""
        lengths = {
            "token_ids": self.rows,
            "sources": self.rows,
            "positions": self.rows,
            "slots": self.rows,
            "firsts": self.sequences + 1,
            "stored": self.sequences,
            "table_rows": self.sequences,
            "logits_rows": self.logits,
            "several": 2,
            "lists": 2 * self.lists,
        }
        places, end = {}, 0
        for name, length in lengths.items():
            places[name] = slice(end, end + length)
            end = aligned(end + length)
        return {**places, "tasks": slice(end, None)}


def layout_of(batch: Batch, lists: int) -> Layout:
    """Return the layout of a step that is launched op by op, or whose captured size its rows fill."""
    sequences, single = len(batch.extents), single_rows([extent.length for extent in batch.extents])
    return Layout(len(batch.token_ids), single, sequences - single, sequences, len(batch.logits_rows), lists)


def captured_layout(rows: int, sequences: int, lists: int) -> Layout:
    """Return the layout of captured steps with prompts, of up to so many rows and sequences."""
    most = min(rows, sequences)
    return Layout(rows, most, most, most, most, lists)


def single_rows(lengths: Sequence[int]) -> int:
    """Return the number of sequences in front that have one row each."""
    return next((number for number, length in enumerate(lengths) if length > 1), len(lengths))


def aligned(words: int) -> int:
    """Return the next multiple of 16 bytes."""
    return -(-words // 4) * 4
