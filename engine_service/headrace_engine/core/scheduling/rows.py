"""The row of a sequence in a step: the ids that it computes, and everything that its request asks of them."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.core.row_fields import Processing, PromptIds
from headrace_engine.core.runner import MOST_TOP, SequenceStep
from headrace_engine.core.scheduling.beam_search import BeamSearch
from headrace_engine.core.scheduling.logit_state import LogitState
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.sampling_params import LogitRules

_PLACEHOLDER = (0,)
"""Stands for an id that is still being sampled."""


def next_row(sequence: Sequence, count: int) -> SequenceStep:
    """Return the row that computes its next `count` ids; a token is sampled if no ids remain after them."""
    samples, start = count == sequence.remaining, sequence.position
    step = SequenceStep(
        token_ids=sequence.ids[start : start + count] if sequence.sampling_row is None else _PLACEHOLDER,
        start=start,
        # The table itself: while the step is in flight, the scheduler only appends to it, or replaces it.
        blocks=sequence.blocks,
        sampling=sequence.request.sampling if samples else None,
        position=sequence.generated_length,
        index=sequence.request.index,
        masked_ids=sequence.masked_ids,
        sampled_at=sequence.sampling_row,
        adapter=sequence.request.adapter,
    )
    return step if sequence.plain else _with_options(sequence, step)


def _with_options(sequence: Sequence, step: SequenceStep) -> SequenceStep:
    """Add to a row of a sequence everything that its request has beyond plain sampling."""
    samples = step.sampling is not None
    if samples and (sequence.request.rules is not None or sequence.guide is not None):
        step = with_rules(sequence, step)
    wanted, pooled = _wanted_prompt_logprobs(sequence, step), _pooled(sequence, step)
    processing = _processing(sequence) if samples and sequence.request.processors else None
    tensors = samples and sequence.request.tensors
    step = replace(step, processing=processing, prompt_logprobs=wanted, pooled=pooled, tensors=tensors)
    return _with_candidates(sequence.search, step) if samples and sequence.search is not None else step


def _with_candidates(search: BeamSearch, step: SequenceStep) -> SequenceStep:
    """Ask for the candidates of a beam: the top logprobs are these where nothing changes them."""
    assert step.sampling is not None, "only rows that sample have candidates"
    count = search.wanted_candidates
    if count > MOST_TOP or step.masked_ids or step.changes is not None or step.processing is not None:
        return replace(step, candidates=count)
    return replace(step, sampling=replace(step.sampling, top_logprobs=max(count, step.sampling.top_logprobs)))


def _wanted_prompt_logprobs(sequence: Sequence, step: SequenceStep) -> PromptIds | None:
    """Return the prompt logprobs to request: those not reported yet, even if the row is recomputed."""
    first, last = sequence.prompt_reported, min(step.start + len(step.token_ids) + 1, sequence.prompt_length)
    if sequence.request.prompt_logprobs is None or first >= last:
        return None
    return PromptIds(first - 1 - step.start, sequence.ids[first:last], sequence.request.prompt_logprobs)


def _pooled(sequence: Sequence, step: SequenceStep) -> int | None:
    """Return the first token of a row whose last hidden states to sum: those not reported yet."""
    end = min(step.start + len(step.token_ids), sequence.prompt_length)
    if sequence.request.pooled is None or sequence.prompt_reported >= end:
        return None
    return sequence.prompt_reported - step.start


def _processing(sequence: Sequence) -> Processing:
    """Return the input of its logits processors, copying only the new ids."""
    sequence.processed.extend(sequence.ids[len(sequence.processed) :])
    return Processing(sequence.request.processors, sequence.processed)


def with_rules(sequence: Sequence, step: SequenceStep) -> SequenceStep:
    """Apply its rules and its grammar to the row."""
    if sequence.logits is None:
        rules = sequence.request.rules or LogitRules()
        sequence.logits = LogitState(rules, sequence.prompt_length, sequence.tables)
    guided = None if sequence.guide is None else sequence.guide.allowed
    masked = (*step.masked_ids, *sequence.logits.follow(sequence.ids, guided))
    # The arrays are the sequence's own, lent for one step: its next row waits for the results (`needs_results`).
    return replace(step, masked_ids=masked, changes=sequence.logits.changes)
