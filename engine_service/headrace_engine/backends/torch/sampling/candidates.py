"""Candidates of beams, from rows of logits in tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from headrace_engine.backends.torch.sampling.logits import CUT
from headrace_engine.core.runner import Candidate, Sampled, SequenceStep


def with_log_softmax(logits: Tensor, steps: Sequence[SequenceStep]) -> Tensor:
    """Return the numbers that the changes of rows apply to: their logits, or the log-softmax where beams go on.

    Args:
        logits: the model's own, float32 [rows, vocab].
    """
    rows = _rows(steps)
    if not rows:
        return logits
    logits = logits.clone()
    logits[rows] = logits[rows].double().log_softmax(1).float()
    return logits


def add_candidates(sampled: list[Sampled], logits: Tensor, changed: Tensor, steps: Sequence[SequenceStep]) -> None:
    """Add the candidates of rows that request them to their results, unless they have an error.

    Args:
        logits: the model's own.
        changed: what `with_log_softmax` returned, changed and processed.
    """
    for row in _rows(steps):
        if not sampled[row].error:
            found = _best(changed[row], logits[row].double().log_softmax(0), steps[row].candidates)
            sampled[row] = replace(sampled[row], token_id=None, candidates=found)


def _rows(steps: Sequence[SequenceStep]) -> list[int]:
    return [row for row, step in enumerate(steps) if step.candidates]


def _best(changed: Tensor, values: Tensor, count: int) -> list[Candidate]:
    best = changed.sort(descending=True, stable=True)
    count = min(count, int((changed > CUT).sum()))
    ids = best.indices[:count]
    return list(zip(ids.tolist(), best.values[:count].double().tolist(), values[ids].tolist(), strict=True))
