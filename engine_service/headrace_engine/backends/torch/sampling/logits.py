"""Logit changes before sampling, and logprobs of the model's own logits."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import SequenceStep
from headrace_engine.sampling_params import SamplingParams

CUT = -math.inf
"""Logit of an id that may not be sampled."""

LOGITS_AT_ONCE = 1 << 19
"""Number of logits processed at once: bounds the memory of their float64 copies and random words."""

_MOST = torch.finfo(torch.float32).max

TokenLogprobs = tuple[float | None, tuple[tuple[int, float], ...]]
"""Logprob of a row's token, and the row's most likely ids with their logprobs."""


def changed_logits(logits: Tensor, steps: Sequence[SequenceStep]) -> Tensor:
    """Return the changed logits; the same tensor where nothing changes.

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


def token_logprobs(logits: Tensor, ids: Tensor, steps: Sequence[SequenceStep]) -> list[TokenLogprobs]:
    """Return log-softmax of the model's own logits at the ids and at the most likely ids, for rows that request it.

    Args:
        logits: the model's own, float32 [rows, vocab].
        ids: the token of each row, [rows].
    """
    found: list[TokenLogprobs] = [(None, ())] * len(steps)
    requesting = [row for row, step in enumerate(steps) if params_of(step).logprobs or params_of(step).top_logprobs]
    for rows in parts(requesting, logits):
        values = logits[rows].double().log_softmax(1)
        chosen = values.gather(1, ids[rows].unsqueeze(1)).squeeze(1).tolist()
        tops = _tops(logits[rows], values, [params_of(steps[row]).top_logprobs for row in rows])
        for number, row in enumerate(rows):
            found[row] = (chosen[number] if params_of(steps[row]).logprobs else None, tops[number])
    return found


def _tops(logits: Tensor, values: Tensor, counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """Return the top `count` ids of each row with their values; ties by lowest id."""
    if not any(counts):
        return [()] * len(counts)
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, : max(counts)]
    best = zip(order.tolist(), values.gather(1, order).tolist(), strict=True)
    return [tuple(zip(*row, strict=True))[:count] for row, count in zip(best, counts, strict=True)]


def parts(rows: Sequence[int], logits: Tensor) -> Iterator[list[int]]:
    """Yield rows in chunks of at most LOGITS_AT_ONCE logits."""
    together = max(1, LOGITS_AT_ONCE // logits.shape[1])
    for first in range(0, len(rows), together):
        yield list(rows[first : first + together])


def params_of(step: SequenceStep) -> SamplingParams:
    """Return the sampling parameters of a sampled row."""
    assert step.sampling is not None
    return step.sampling


def _change(row: Tensor, changes: LogitChanges) -> None:
    """Apply changes to one row in place. Cut ids stay cut."""
    if changes.allowed is not None:
        row[~_allowed(changes.allowed, row)] = CUT
    factor = changes.repetition
    for ids, amounts, repeats in (
        (changes.penalized, [-penalty for penalty in changes.penalties], True),
        (changes.biased, changes.biases, False),
    ):
        present = torch.tensor(ids, dtype=torch.int64, device=row.device)
        added = torch.tensor(amounts, dtype=torch.float64, device=row.device)
        inside = (present >= 0) & (present < len(row))
        present, added = present[inside], added[inside]
        before = row[present].double()
        repeated = torch.where(before < 0, before * factor, before / factor) if repeats else before
        row[present] = _finite(_finite(repeated).double() + added).where(before > CUT, CUT)


def _finite(values: Tensor) -> Tensor:
    return values.clamp(-_MOST, _MOST).float()


def _allowed(words: array[int], row: Tensor) -> Tensor:
    bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), bitorder="little")[: len(row)]
    return torch.from_numpy(np.pad(bits, (0, len(row) - len(bits)))).bool().to(row.device)


def _inside(ids: Iterable[int], logits: Tensor) -> Tensor:
    inside = [token_id for token_id in ids if 0 <= token_id < logits.shape[1]]
    return torch.tensor(inside, dtype=torch.int64, device=logits.device)
