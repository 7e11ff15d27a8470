"""Sampling parameters and results of rows, as the structs that csrc's samplers read and write."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.native import Limit
from headrace_engine.native import LogitChanges as ChangesStruct
from headrace_engine.native import Sampled as SampledStruct
from headrace_engine.native import Sampling as SamplingStruct
from headrace_engine.sampling_params import SamplingParams

TOP = int(Limit.TOP_LOGPROBS)
"""Number of entries in a row's list of most likely ids."""

ROW_BYTES = {
    "changes": ctypes.sizeof(ChangesStruct),
    "sampling": ctypes.sizeof(SamplingStruct),
    "sampled": ctypes.sizeof(SampledStruct),
    "top_ids": TOP * ctypes.sizeof(ctypes.c_int32),
    "top_logprobs": TOP * ctypes.sizeof(ctypes.c_double),
}
"""Bytes per row of each array."""

_PARAMETERS = tuple(field.name for field in fields(SamplingParams))
"""Fields that CoreSampling shares by name."""

Bytes = NDArray[np.uint8]


class SamplingStructs:
    """Structs of rows of logits, in host memory read and written by a sampler or its device.

    Args:
        changes, sampling, sampled, top_ids, top_logprobs: contiguous arrays in that memory, ROW_BYTES per row.
        vocab: number of logits per row.
    """

    def __init__(
        self, *, changes: Bytes, sampling: Bytes, sampled: Bytes, top_ids: Bytes, top_logprobs: Bytes, vocab: int
    ) -> None:
        self._vocab = vocab
        self._changes = structs_in(changes, ChangesStruct)
        self._sampling = structs_in(sampling, SamplingStruct)
        self._sampled = structs_in(sampled, SampledStruct)
        self._written: list[SamplingParams | None] = [None] * len(self._sampling)
        self._top_ids = top_ids.reshape(-1).data.cast("i")
        self._top_logprobs = top_logprobs.reshape(-1).data.cast("d")

    def pack_sampling(self, number: int, step: SequenceStep, sampling: SamplingParams, changes: int) -> None:
        """Write the sampling parameters of row `number`.

        Args:
            changes: address of its CoreLogitChanges; 0: none.
        """
        row = self._sampling[number]
        if self._written[number] is not sampling:  # Parameters rarely change between steps.
            for name in _PARAMETERS:
                setattr(row, name, getattr(sampling, name))
            row.top_k = min(sampling.top_k, self._vocab)
            self._written[number] = sampling
        row.changes, row.position, row.index = changes, step.position, step.index

    def pack_changes(
        self, number: int, changes: LogitChanges, masked_count: int, addresses: Sequence[int], allowed_words: int
    ) -> None:
        """Write the logit changes of row `number`.

        Args:
            addresses: addresses of the arrays penalized, penalties, biased, biases, masked, allowed.
            allowed_words: number of words of the mask of allowed ids.
        """
        row = self._changes[number]
        row.penalized, row.penalties, row.biased, row.biases, row.masked, row.allowed = addresses
        row.repetition = changes.repetition
        row.penalized_count, row.biased_count = len(changes.penalized), len(changes.biased)
        row.masked_count, row.allowed_words = masked_count, allowed_words

    def sampled(self, rows: Iterable[tuple[int, SamplingParams]]) -> Iterator[Sampled]:
        """Yield the results of rows.

        Args:
            rows: index of each row, and its sampling parameters.
        """
        for number, sampling in rows:
            row = self._sampled[number]
            token = row.token
            if not row.finite:
                yield Sampled(None, error="logits are not finite")
            elif token < 0:
                yield Sampled(None)
            else:
                top = self._top(number, min(sampling.top_logprobs, self._vocab)) if sampling.top_logprobs else ()
                yield Sampled(token, row.logprob if sampling.logprobs else None, top=top)

    def _top(self, number: int, count: int) -> Sequence[tuple[int, float]]:
        span = slice(number * TOP, number * TOP + count)
        return list(zip(self._top_ids[span], self._top_logprobs[span], strict=True))


def structs_in(memory: Bytes, kind: type[ctypes.Structure]) -> list[Any]:
    """Return the structs stored contiguously in memory, which they keep alive."""
    return list((kind * (memory.nbytes // ctypes.sizeof(kind))).from_buffer(memory.data))
