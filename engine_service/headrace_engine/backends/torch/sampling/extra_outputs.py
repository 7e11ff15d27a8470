"""What a step tells beside its tokens, from hidden states that torch holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from headrace_engine.backends.extra_outputs import tell
from headrace_engine.backends.torch.sampling.sampler import sample
from headrace_engine.backends.torch.workspace import rows_at_once
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.models.decoder import Decoder


def tell_of_states(
    decoder: Decoder[Tensor, Any],
    steps: Sequence[SequenceStep],
    drawn: Iterable[Sampled],
    states: Tensor,
    selected: Tensor,
    embedding: Callable[[int], Tensor],
) -> list[Sampled]:
    """One answer for each step that wants one, as `tell`.

    Args:
        drawn: of the steps with `sampling`.
        states: hidden states of all rows, [rows, hidden].
        selected: those of the rows that draw.
        embedding: of an id, [hidden].
    """

    def score(rows: list[int], forced: list[SequenceStep]) -> list[Sampled]:
        return sample(decoder.logits(states[rows]), forced)

    def vectors(number: int, token_id: int) -> bytes:
        return _bytes(embedding(token_id)) + _bytes(selected[number])

    return tell(steps, drawn, score, rows_at_once(decoder.vocab_size), vectors)


def _bytes(vector: Tensor) -> bytes:
    return vector.float().cpu().numpy().tobytes()
