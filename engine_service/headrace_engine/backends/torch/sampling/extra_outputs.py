"""Computes optional outputs of a step besides its tokens, from hidden states in torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace_engine.backends.extra_outputs import collect_extras
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.backends.torch.workspace import rows_at_once
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.models.decoder import Decoder


def collect_from_states(
    decoder: Decoder[Tensor, Any],
    steps: Sequence[SequenceStep],
    sampled: Iterable[Sampled],
    states: Tensor,
    selected: Tensor,
    embedding: Callable[[int], Tensor],
) -> list[Sampled]:
    """Return one result for each step that `has_result`, as `collect_extras`.

    Args:
        sampled: results of the steps with `sampling`.
        states: hidden states of all rows, [rows, hidden].
        selected: hidden states of the rows that sample.
        embedding: returns that of an id, [hidden].
    """

    def score(rows: list[int], forced: list[SequenceStep]) -> list[Sampled]:
        return sample(decoder.logits(states[rows]), forced)

    def vectors(number: int, token_id: int) -> bytes:
        return _bytes(embedding(token_id)) + _bytes(selected[number])

    def pool(first: int, last: int) -> bytes:
        return states[first:last].sum(0, dtype=torch.float64).cpu().numpy().tobytes()

    return collect_extras(steps, sampled, score, rows_at_once(decoder.vocab_size), vectors, pool)


def _bytes(vector: Tensor) -> bytes:
    return vector.float().cpu().numpy().tobytes()
