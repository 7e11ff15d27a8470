"""How a row is drawn, and what was drawn, as csrc's samplers read and write them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Sequence

from headrace_engine.core.runner import LogitChanges, Sampled, SequenceStep
from headrace_engine.generation_config import SamplingParams
from headrace_engine.native import Limit
from headrace_engine.native import LogitChanges as ChangesStruct
from headrace_engine.native import Sampled as SampledStruct
from headrace_engine.native import Sampling as SamplingStruct

SAMPLING = struct.Struct("@dddQQiiiii0Q")
CHANGES = struct.Struct("@QQQQQQfiiii0Q")
SAMPLED = struct.Struct("@dii")
TOP = int(Limit.TOP_LOGPROBS)
"""Entries of a row's list of most likely ids."""

_SIZES = {SAMPLING: SamplingStruct, SAMPLED: SampledStruct, CHANGES: ChangesStruct}
assert all(layout.size == ctypes.sizeof(record) for layout, record in _SIZES.items())


def pack_sampling(
    room: memoryview, number: int, step: SequenceStep, sampling: SamplingParams, changes: int, vocab: int
) -> None:
    """Write how row `number` is drawn.

    Args:
        changes: address of what is done to its logits; 0: nothing is.
    """
    SAMPLING.pack_into(
        room,
        number * SAMPLING.size,
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.seed,
        changes,
        min(sampling.top_k, vocab),
        step.position,
        step.index,
        sampling.logprobs,
        sampling.top_logprobs,
    )


def pack_changes(
    room: memoryview, number: int, changes: LogitChanges, masked_count: int, places: Iterable[int], words: int
) -> None:
    """Write what is done to the logits of row `number`.

    Args:
        places: addresses of its arrays: penalized, penalties, biased, biases, masked, allowed.
        words: of the bits that say what is allowed.
    """
    CHANGES.pack_into(
        room,
        number * CHANGES.size,
        *places,
        changes.repetition,
        len(changes.penalized),
        len(changes.biased),
        masked_count,
        words,
    )


def unpack_drawn(
    room: memoryview,
    tops: tuple[memoryview, memoryview[float]],
    rows: Iterable[tuple[int, SamplingParams]],
    vocab: int,
) -> Iterator[Sampled]:
    """What was drawn for rows that wanted it.

    Args:
        tops: the most likely ids and their log-probabilities, TOP a row.
        rows: number of each row, and how it was drawn.
    """
    for number, sampling in rows:
        logprob, token, finite = SAMPLED.unpack_from(room, number * SAMPLED.size)
        if not finite:
            yield Sampled(None, error="logits are not finite")
        elif token < 0:
            yield Sampled(None)
        else:
            top = _top(tops, number, min(sampling.top_logprobs, vocab)) if sampling.top_logprobs else ()
            yield Sampled(token, logprob if sampling.logprobs else None, top=top)


def _top(tops: tuple[memoryview, memoryview[float]], number: int, count: int) -> Sequence[tuple[int, float]]:
    ids, logprobs = tops
    span = slice(number * TOP, number * TOP + count)
    return list(zip(ids[span], logprobs[span], strict=True))
