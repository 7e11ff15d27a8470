"""The interface of a runner that computes its share of a model, together with those of other ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from headrace_engine.core.row_fields import PromptIds
from headrace_engine.core.runner import Runner, SequenceStep
from headrace_engine.ipc.ranks import RankRow, RankStep
from headrace_engine.sampling_params import SamplingParams

_ANY = SamplingParams(temperature=0)


class RankRunner(Runner):
    """A rank's runner. All ranks load, join, measure, allocate, copy and step together; rank 0 alone samples.

    Its sizes are those of its own share.
    """

    @abstractmethod
    def meet(self) -> str:
        """Open the place on this host where the ranks meet, and return its name. Rank 0 alone, after `load`."""

    @abstractmethod
    def join(self, place: str) -> None:
        """Connect with all other ranks.

        Raises:
            Internal: one did not.
        """

    def leave(self) -> None:
        """Have exchanges fail that wait for a rank which is gone. Safe from any thread."""

    @abstractmethod
    def follow(self, steps: Sequence[SequenceStep]) -> None:
        """Take part in a step that rank 0 runs. Of sampling and prompt logprobs, only whether there are any counts."""


def rank_step(steps: Sequence[SequenceStep]) -> RankStep:
    """Return what other ranks need to know of a step."""
    return RankStep([_row(step) for step in steps])


def _row(step: SequenceStep) -> RankRow:
    scored = step.prompt_logprobs
    sampled = step.sampling is not None
    row = RankRow(list(step.token_ids), step.start, list(step.blocks), sampled, adapter=step.adapter)
    if scored is not None:
        row.scored_from, row.scored = scored.first, len(scored.ids)
    return row


def followed_steps(step: RankStep) -> list[SequenceStep]:
    """Return the steps to follow."""
    return [
        SequenceStep(
            row.token_ids,
            row.start,
            row.blocks,
            sampling=_ANY if row.has_logits else None,
            prompt_logprobs=PromptIds(row.scored_from, [0] * row.scored) if row.scored else None,
            adapter=row.adapter,
        )
        for row in step.rows
    ]
