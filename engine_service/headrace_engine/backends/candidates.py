"""Candidates of beams, from rows of logits in numpy: the torch backend's (`sampling/candidates.py`), on a CPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.changed_row import Row, changed_row
from headrace_engine.backends.processors import Process, run_processes
from headrace_engine.core.runner import Candidate, Sampled, SequenceStep


def candidates_of(own: Row, step: SequenceStep, processes: Mapping[str, Process]) -> Sampled:
    """Return the candidates of a row that requests them.

    Args:
        own: the model's logits, finite.
        processes: logits processors by name.
    """
    values = _log_softmax(own)
    row = changed_row(values.astype(np.float32), step)
    error = "" if step.processing is None else run_processes(row, step.processing, processes)
    return Sampled(None, error=error) if error else Sampled(None, candidates=_best(row, values, step.candidates))


def _log_softmax(own: Row) -> NDArray[np.float64]:
    shifted = own.astype(np.float64) - own.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _best(row: Row, values: NDArray[np.float64], count: int) -> list[Candidate]:
    """Return the ids with the largest numbers in a row; ties by lowest id."""
    allowed = np.flatnonzero(row > -np.inf)
    if len(allowed) > count:
        kth = np.partition(row[allowed], len(allowed) - count)[len(allowed) - count]
        allowed = allowed[row[allowed] >= kth]
    ids = allowed[np.argsort(-row[allowed], kind="stable")][:count]
    return list(zip(ids.tolist(), row[ids].astype(np.float64).tolist(), values[ids].tolist(), strict=True))
