"""What a step brought, in columns for the front half."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace_engine.core.runner import Sampled, Scores
from headrace_engine.core.scheduling.schedule import Schedule
from headrace_engine.messages import Ended, PromptPiece, StepOutput
from headrace_engine.stat_types import CoreStat


def step_output(
    schedule: Schedule,
    drawn: Mapping[int, Sampled],
    prompts: list[PromptPiece],
    ended: list[Ended],
    stat: CoreStat,
    seconds: float,
) -> StepOutput:
    """One step, with the tokens that it brought by key."""
    return StepOutput(
        keys=list(drawn),
        token_ids=[token.token_id for token in drawn.values() if token.token_id is not None],
        logprobs=_logprobs(drawn),
        **_tops(drawn),
        tensors=_tensors(drawn),
        prompts=prompts,
        scheduled=schedule.scheduled,
        preempted=schedule.preempted,
        ended=ended,
        stat=stat,
        step_time=seconds,
        batch_size=len(schedule.rows),
    )


def _logprobs(drawn: Mapping[int, Sampled]) -> list[float]:
    values = [token.logprob for token in drawn.values()]
    if all(value is None for value in values):
        return []
    return [math.nan if value is None else value for value in values]


def _tensors(drawn: Mapping[int, Sampled]) -> list[bytes]:
    tensors = [token.tensors for token in drawn.values()]
    return tensors if any(tensors) else []


def _tops(drawn: Mapping[int, Sampled]) -> dict[str, Any]:
    """The columns of most likely ids; none where nobody asked for them."""
    if not any(token.top for token in drawn.values()):
        return {}
    pairs = [pair for token in drawn.values() for pair in token.top]
    return {
        "top_counts": [len(token.top) for token in drawn.values()],
        "top_ids": [token_id for token_id, _ in pairs],
        "top_logprobs": [logprob for _, logprob in pairs],
    }


def prompt_piece(key: int, position: int, scores: Scores) -> PromptPiece:
    """What was told of a prompt from a position on."""
    tops = list(scores.top_ids), list(scores.top_logprobs)
    return PromptPiece(key, position, list(scores.logprobs), *tops)
