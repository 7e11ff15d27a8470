"""Captured steps of one token per sequence: one for each bucket of batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace_engine.backends.cuda.device.buckets import bucket_of, bucket_sizes
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
