"""Captured steps: those of one token per sequence, for some batch sizes, and those with prompts, for some rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor

from headrace_engine.backends.cuda.device.buckets import bucket_of, bucket_sizes, prompt_sizes
from headrace_engine.backends.cuda.device.device import Device, Graph
from headrace_engine.models.ops import Batch, Extent


class DecodeGraphs:
    """Steps of one token per sequence, captured once and replayed.

    Rows that pad a batch to a captured size write to the spare block.

    Args:
        device: captures and replays them.
        largest: maximum number of sequences.
        spare_block: a block that no sequence owns.
        fill: uploads a step to the device; all its rows need logits.
        compute: enqueues the computation of a step and its sampling.
    """

    def __init__(
        self,
        device: Device,
        largest: int,
        spare_block: int,
        fill: Callable[[Batch], object],
        compute: Callable[[Batch], object],
    ) -> None:
        self._spare = Extent(0, 1, 0, (spare_block,))
        self._sizes = bucket_sizes(largest)
        self._graphs: dict[int, Graph] = {}
        for size in reversed(self._sizes):  # Largest first, so that the smaller ones reuse its memory.
            batch = self._filled_up([], [], size)
            fill(batch)
            compute(batch)
            self._graphs[size], _ = device.capture(partial(compute, batch))

    def run(self, token_ids: Sequence[int], extents: Sequence[Extent], fill: Callable[[Batch], object]) -> None:
        """Enqueue one token of each sequence.

        Args:
            token_ids: one per sequence.
            extents: each of length 1.
            fill: uploads the step to the device.
        """
        fill(self._filled_up(token_ids, extents, self.rows(len(extents))))
        self._graphs[self.rows(len(extents))].replay()

    def rows(self, sequences: int) -> int:
        """Return the rows to which a step of `sequences` sequences is padded."""
        size = bucket_of(self._sizes, sequences)
        assert size is not None, "more sequences than the largest batch"
        return size

    def _filled_up(self, token_ids: Sequence[int], extents: Sequence[Extent], size: int) -> Batch:
        more = size - len(extents)
        rows = [
            Extent(row, 1, extent.start, extent.blocks) for row, extent in enumerate([*extents, *[self._spare] * more])
        ]
        return Batch([*token_ids, *[0] * more], rows, range(size))


class Fill(Protocol):
    """Uploads a step to the device."""

    def __call__(self, batch: Batch, *, padded: int) -> object:
        """Upload a step of up to `padded` rows, as the captured step of so many takes it."""


class PromptGraphs:
    """Steps with any number of rows a sequence, captured up to their last hidden states, and replayed.

    How many rows each sequence has is read on the device. Rows that pad a step to a captured size store no keys and
    values and attend to nothing; what they compute is not read.

    Args:
        device: captures and replays them.
        largest: maximum rows of a step.
        spare_block: a block that no sequence owns.
        fill: uploads a step.
        compute: enqueues the computation of an uploaded step; returns the states of rows that need logits.
    """

    def __init__(
        self, device: Device, largest: int, spare_block: int, fill: Fill, compute: Callable[[Batch], Tensor]
    ) -> None:
        self._sizes = prompt_sizes(largest)
        self._graphs: dict[int, tuple[Graph, Tensor]] = {}
        empty = empty_step(spare_block)
        for size in reversed(self._sizes):
            fill(empty, padded=size)
            compute(empty)
            self._graphs[size] = device.capture(partial(compute, empty))

    def takes(self, batch: Batch) -> bool:
        """True if a step is no larger than the largest captured one."""
        return len(batch.token_ids) <= self._sizes[-1]

    def run(self, batch: Batch, fill: Fill) -> Tensor:
        """Enqueue a step; return the last hidden states of its rows that need logits, valid until the next step."""
        size = bucket_of(self._sizes, len(batch.token_ids))
        assert size is not None, "more rows than the largest captured step"
        fill(batch, padded=size)
        graph, states = self._graphs[size]
        graph.replay()
        return states[: len(batch.logits_rows)]


def empty_step(spare_block: int) -> Batch:
    """Return a step of a single row, which nobody reads."""
    return Batch([0], [Extent(0, 1, 0, (spare_block,))], [0])
