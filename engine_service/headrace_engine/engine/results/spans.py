"""Spans of a sequence, made of its times when it has ended."""

from __future__ import annotations

from typing import Any

from headrace_proto.pure import tracing

from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.result_types import FinishReason, GenerateStatus


def record_spans(times: SequenceTimes, reason: FinishReason, index: int, generated: int) -> None:
    """Make the spans of a sequence that has ended: one of all, and in it those of queue, prefill and decode.

    Args:
        index: of the sequence in its request.
        generated: number of tokens that it generated.
    """
    if not tracing.is_on():
        return
    ended = times.arrival if times.finished is None else times.finished
    failed = reason.value if reason.status is GenerateStatus.INTERNAL_ERROR else ""
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": times.prompt_length,
        "gen_ai.usage.output_tokens": generated,
        "gen_ai.response.finish_reasons": [reason.value],
        "headrace.index": index,
        "headrace.cached_tokens": times.cached_length or 0,
        "headrace.preemptions": times.preemptions,
        "headrace.handovers": times.handovers,
    }
    whole = tracing.record("engine.request", times.trace, times.arrival, ended, attributes, failed=failed)
    points = [
        ("engine.queue", times.arrival),
        ("engine.prefill", times.scheduled),
        ("engine.decode", times.first_token),
    ]
    begun = [(name, began) for name, began in points if began is not None]
    ends = [*(began for _, began in begun[1:]), ended]
    for (name, began), end in zip(begun, ends, strict=True):
        last = end == ended
        events = [event for event in times.events if began <= event[1] and (event[1] < end or last)]
        tracing.record(name, whole or times.trace, began, end, events=events)
