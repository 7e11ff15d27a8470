"""What requests change about logits before a token is drawn, and what they are told about the model's own."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headrace_engine.core.runner import LogitChanges, SequenceStep
from headrace_engine.sampling_params import SamplingParams

CUT = -math.inf
"""The logit of an id that may not be drawn."""

LOGITS_AT_ONCE = 1 << 19
"""Logits of the rows that are computed together: bounds the memory of their float64 copies and random words."""

_MOST = torch.finfo(torch.float32).max

Told = tuple[float | None, tuple[tuple[int, float], ...]]
"""Log-probability of a row's token, and the row's most likely ids with theirs."""


def changed_logits(logits: Tensor, steps: Sequence[SequenceStep]) -> Tensor:
    """The logits as the cuts see them; the same tensor where nothing changes.

    Args:
        logits: the model's own, float32 [rows, vocab].
    """
    rows = [row for row, step in enumerate(steps) if _changes(step)]
    if not rows:
        return logits
    logits = logits.clone()
    for row in rows:
        changes = steps[row].changes
        if changes is not None:
            _change(logits[row], changes)
        logits[row, _inside(steps[row].masked_ids, logits)] = CUT
    return logits


def _changes(step: SequenceStep) -> bool:
    return bool(step.masked_ids) or step.changes is not None or step.processing is not None


def told_logprobs(logits: Tensor, ids: Tensor, steps: Sequence[SequenceStep]) -> list[Told]:
    """Log-softmax of the model's own logits at the ids and at the most likely ids, for the rows that ask.

    Args:
        logits: the model's own, float32 [rows, vocab].
        ids: the token of each row, [rows].
    """
    told: list[Told] = [(None, ())] * len(steps)
    asking = [row for row, step in enumerate(steps) if params_of(step).logprobs or params_of(step).top_logprobs]
    for rows in parts(asking, logits):
        values = logits[rows].double().log_softmax(1)
        chosen = values.gather(1, ids[rows].unsqueeze(1)).squeeze(1).tolist()
        tops = _tops(logits[rows], values, [params_of(steps[row]).top_logprobs for row in rows])
        for place, row in enumerate(rows):
            told[row] = (chosen[place] if params_of(steps[row]).logprobs else None, tops[place])
    return told


def _tops(logits: Tensor, values: Tensor, counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """So many of the most likely ids of each row; of equal ones the lowest id first."""
    if not any(counts):
        return [()] * len(counts)
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, : max(counts)]
    best = zip(order.tolist(), values.gather(1, order).tolist(), strict=True)
    return [tuple(zip(*row, strict=True))[:count] for row, count in zip(best, counts, strict=True)]


def parts(rows: Sequence[int], logits: Tensor) -> Iterator[list[int]]:
    """Rows, as many at a time as are computed together."""
    together = max(1, LOGITS_AT_ONCE // logits.shape[1])
    for first in range(0, len(rows), together):
        yield list(rows[first : first + together])


def params_of(step: SequenceStep) -> SamplingParams:
    """How a row draws its token; it wants one."""
    assert step.sampling is not None
    return step.sampling


def _change(row: Tensor, changes: LogitChanges) -> None:
    """Apply changes to one row, in place. An id that is cut stays so."""
    if changes.allowed is not None:
        row[~_allowed(changes.allowed, row)] = CUT
    factor = changes.repetition
    for ids, amounts, repeats in (
        (changes.penalized, [-penalty for penalty in changes.penalties], True),
        (changes.biased, changes.biases, False),
    ):
        places = torch.tensor(ids, dtype=torch.int64, device=row.device)
        added = torch.tensor(amounts, dtype=torch.float64, device=row.device)
        inside = (places >= 0) & (places < len(row))
        places, added = places[inside], added[inside]
        before = row[places].double()
        repeated = torch.where(before < 0, before * factor, before / factor) if repeats else before
        row[places] = _finite(_finite(repeated).double() + added).where(before > CUT, CUT)


def _finite(values: Tensor) -> Tensor:
    return values.clamp(-_MOST, _MOST).float()


def _allowed(words: array[int], row: Tensor) -> Tensor:
    bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), bitorder="little")[: len(row)]
    return torch.from_numpy(np.pad(bits, (0, len(row) - len(bits)))).bool().to(row.device)


def _inside(ids: Iterable[int], logits: Tensor) -> Tensor:
    kept = [token_id for token_id in ids if 0 <= token_id < logits.shape[1]]
    return torch.tensor(kept, dtype=torch.int64, device=logits.device)
