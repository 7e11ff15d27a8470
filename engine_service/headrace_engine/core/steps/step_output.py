"""Builds the StepOutput of a step, in columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from headrace_engine.core.row_fields import PromptLogprobs
from headrace_engine.core.runner import Sampled
from headrace_engine.core.scheduling.schedule import Schedule
from headrace_engine.ipc.step_output import Drafts, Ended, PooledPiece, PromptPiece, StepOutput
from headrace_engine.stat_types import CoreStat


def step_output(
    schedule: Schedule,
    sampled: Sequence[tuple[int, Sampled]],
    prompts: list[PromptPiece],
    pooled: list[PooledPiece],
    drafts: list[Drafts],
    ended: list[Ended],
    stat: CoreStat,
    seconds: float,
) -> StepOutput:
    """Return the output of one step.

    Args:
        sampled: the sampled tokens, each with the key of its sequence; several of one sequence in order.
    """
    return StepOutput(
        keys=[key for key, _ in sampled],
        token_ids=[token.token_id for _, token in sampled if token.token_id is not None],
        logprobs=_logprobs(sampled),
        **_tops(sampled),
        tensors=_tensors(sampled),
        prompts=prompts,
        pooled=pooled,
        drafts=drafts,
        scheduled=schedule.scheduled,
        preempted=schedule.preempted,
        ended=ended,
        stat=stat,
        step_time=seconds,
        batch_size=len(schedule.rows),
    )


def _logprobs(sampled: Sequence[tuple[int, Sampled]]) -> list[float]:
    values = [token.logprob for _, token in sampled]
    if all(value is None for value in values):
        return []
    return [math.nan if value is None else value for value in values]


def _tensors(sampled: Sequence[tuple[int, Sampled]]) -> list[bytes]:
    tensors = [token.tensors for _, token in sampled]
    return tensors if any(tensors) else []


def _tops(sampled: Sequence[tuple[int, Sampled]]) -> dict[str, Any]:
    """Return the columns of top logprobs; none if no row requested them."""
    if not any(token.top for _, token in sampled):
        return {}
    pairs = [pair for _, token in sampled for pair in token.top]
    return {
        "top_counts": [len(token.top) for _, token in sampled],
        "top_ids": [token_id for token_id, _ in pairs],
        "top_logprobs": [logprob for _, logprob in pairs],
    }


def prompt_piece(key: int, position: int, found: PromptLogprobs) -> PromptPiece:
    """Return the prompt logprobs of one sequence, from a position on."""
    tops = list(found.top_ids), list(found.top_logprobs)
    return PromptPiece(key, position, list(found.logprobs), *tops)
