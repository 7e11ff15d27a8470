"""Samples the next token of each row: logit changes, temperature, top-k, top-p, min-p, Gumbel-max with Philox.

Everything after the model's float32 logits is computed in float64, with the largest logit of a row moved to 0, so
that the smallest temperature neither overflows nor loses the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace_engine.backends.torch.sampling.candidates import add_candidates, with_log_softmax
from headrace_engine.backends.torch.sampling.logits import (
    CUT,
    TokenLogprobs,
    changed_logits,
    params_of,
    parts,
    token_logprobs,
)
from headrace_engine.backends.torch.sampling.philox import philox, seed_key, uniform
from headrace_engine.core.row_fields import Processing
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.sampling_params import SamplingParams

ProcessRow = Callable[[Tensor, Processing], str]
"""Change a row of logits in place; return an error, or ""."""


def sample(logits: Tensor, steps: Sequence[SequenceStep], process: ProcessRow | None = None) -> list[Sampled]:
    """Sample one token per row, or find its candidates.

    Args:
        logits: the model's own, [rows, vocab], any float type.
        steps: the row's sampling parameters, position, index, masked ids and changes; `sampling` is set in each.
        process: runs the steps' `processing`; None: no step has any.
    """
    logits = logits.float()
    finite = logits.isfinite().all(1).tolist()
    changed = changed_logits(with_log_softmax(logits, steps), steps)
    errors = ["" if each else "logits are not finite" for each in finite]
    if process is not None:
        _process(changed, steps, errors, process)
    ids = changed.argmax(1)
    left = (changed.amax(1) > CUT).tolist()
    random = [row for row, step in enumerate(steps) if left[row] and not errors[row] and not _greedy(params_of(step))]
    for rows in parts(random, logits):
        ids[rows] = _sample_rows(changed[rows], [steps[row] for row in rows])
    logprobs = token_logprobs(logits, ids, steps)
    sampled = [_sampled(*row) for row in zip(errors, left, ids.tolist(), logprobs, strict=True)]
    add_candidates(sampled, logits, changed, steps)
    return sampled


def _process(changed: Tensor, steps: Sequence[SequenceStep], errors: list[str], process: ProcessRow) -> None:
    """Run the logits processors of rows that have no error yet."""
    for row, step in enumerate(steps):
        if step.processing is not None and not errors[row]:
            errors[row] = process(changed[row], step.processing)


def _sampled(error: str, left: bool, token_id: int, logprobs: TokenLogprobs) -> Sampled:
    if error:
        return Sampled(None, error=error)
    logprob, top = logprobs
    return Sampled(token_id, logprob, top=top) if left else Sampled(None)


def _greedy(params: SamplingParams) -> bool:
    return params.temperature == 0 or params.top_k == 1


def _tensor(values: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _sample_rows(logits: Tensor, steps: Sequence[SequenceStep]) -> Tensor:
    def column(value: Callable[[SamplingParams], float]) -> Tensor:
        values = [value(params_of(step)) for step in steps]
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    scaled = logits.double()
    scaled = (scaled - scaled.amax(1, keepdim=True)) / column(lambda params: params.temperature)
    scaled = _cut_top(scaled, column(lambda params: params.top_k), column(lambda params: params.top_p))
    scaled = scaled.masked_fill(scaled.exp() < column(lambda params: params.min_p), CUT)
    return _gumbel_max(scaled, steps)


def _cut_top(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Cut ids less likely than the k-th, then those beyond top_p of the remaining mass."""
    rows = ((top_k > 0) | (top_p < 1)).squeeze(1).nonzero().squeeze(1)
    if not len(rows):
        return scaled
    top_k, top_p, vocab = top_k[rows].long(), top_p[rows], scaled.shape[1]
    ordered = scaled[rows].sort(1, descending=True).values
    kth = ordered.gather(1, torch.where(top_k > 0, top_k, vocab).clamp(max=vocab) - 1)
    mass = ordered.masked_fill(ordered < kth, CUT).softmax(1).cumsum(1)
    edge = ordered.gather(1, (mass < top_p).sum(1, keepdim=True).clamp(max=vocab - 1))
    floor = torch.maximum(kth, torch.where(top_p < 1, edge, CUT))
    return scaled.index_copy(0, rows, scaled[rows].masked_fill(scaled[rows] < floor, CUT))


def _gumbel_max(scaled: Tensor, steps: Sequence[SequenceStep]) -> Tensor:
    """Return the id of the largest score of each row; ties by lowest id. Cut ids never win."""
    rows, ids = (scaled > CUT).nonzero(as_tuple=True)
    low, high = seed_key([params_of(step).seed for step in steps], scaled.device)
    positions = _tensor([step.position for step in steps], scaled)
    indices = _tensor([step.index for step in steps], scaled)
    counter = (positions[rows], ids, indices[rows], torch.zeros_like(ids))
    word, *_ = philox(counter, (low[rows], high[rows]))
    noise = -torch.log(-torch.log1p(-uniform(word)))
    scores = torch.full_like(scaled, CUT)
    scores[rows, ids] = scaled[rows, ids] + noise
    return scores.argmax(1)
