"""Shares out decode attention: which ranges of tokens thread blocks take, by the lengths of a step's sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.models.spec import DecoderSpec

PART_TOKENS = 512
"""Tokens of a part, while a sequence has few parts."""

MOST_SHARERS = 256
"""Thread blocks that share a long sequence, about: more than a device has multiprocessors."""

TASK_WORDS = 6
"""32-bit numbers in CoreDecodeTask."""

_TOGETHER = 16
"""Tokens that a kernel takes at once; inner bounds of parts are multiples."""

_TILE_HEADS = 8
"""Query heads of one KV head that a thread block takes together."""

Array = NDArray[Any]


class DecodeTasks:
    """Lists the tasks of steps: a list for each window of the decoder's layers.

    The parts of a sequence depend on its own length alone, so that its bits do not depend on what else a step computes
    or on how long sequences may become.

    Args:
        spec: the decoder.
        longest: maximum tokens of a sequence.

    Attributes:
        lists: number of lists.
        most_parts: maximum parts of a sequence.
    """

    def __init__(self, spec: DecoderSpec, longest: int) -> None:
        windows = [layer.window or 0 for layer in spec.layers]
        self._windows = sorted(set(windows))
        self._list_of = [self._windows.index(window) for window in windows]
        self.lists = len(self._windows)
        tiles = -(-spec.num_heads // spec.num_kv_heads // _TILE_HEADS)
        self._limit = max(1, MOST_SHARERS // (spec.num_kv_heads * tiles))
        self.most_parts = min(self._limit, -(-longest // PART_TOKENS))

    def list_of(self, layer: int) -> int:
        """Return the number of the list that a layer takes."""
        return self._list_of[layer]

    def share(self, stored: Array, table_rows: Array) -> tuple[Array, Array]:
        """Share out sequences of one row each.

        Args:
            stored: tokens of each sequence, its row included.
            table_rows: the row of the block tables of each.

        Returns:
            The first task and the number of tasks of each list, [lists, 2], and all tasks, [tasks, TASK_WORDS].
        """
        tasks = [self._of_window(window, stored, table_rows) for window in self._windows]
        counts = np.array([len(each) for each in tasks])
        return np.stack((counts.cumsum() - counts, counts), 1), np.concatenate(tasks)

    def _of_window(self, window: int, stored: Array, table_rows: Array) -> Array:
        lowest = np.maximum(stored - window, 0) if window else np.zeros_like(stored)
        start = lowest // _TOGETHER * _TOGETHER
        seen = stored - start
        size = np.maximum(PART_TOKENS, -(-seen // (self._limit * _TOGETHER)) * _TOGETHER)
        parts = np.maximum(-(-seen // size), 1)
        of = np.repeat(np.arange(len(stored)), parts)
        part = np.arange(len(of)) - np.repeat(parts.cumsum() - parts, parts)
        first = np.where(part == 0, lowest[of], start[of] + part * size[of])
        end = np.minimum(start[of] + (part + 1) * size[of], stored[of])
        tasks = np.stack((of, table_rows[of], first, end, part, parts[of]), 1)
        shortened = end - first < size[of]
        return tasks[np.argsort(shortened, kind="stable")]  # whole parts first: the others fill up the end
