"""What a step tells beside its tokens, for those that ask: log-probabilities of the prompt, and vectors."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from headrace_engine.core.runner import LogitChanges, Sampled, Scores, SequenceStep
from headrace_engine.sampling_params import SamplingParams

_BEYOND_ALL = 3.4e38
"""Added to the logit of an id, it is drawn; what is told is of the model's own logits, without it."""

Score = Callable[[list[int], list[SequenceStep]], list[Sampled]]
"""Draws as the steps say from the logits of so many rows of the batch."""

Vectors = Callable[[int, int], bytes]
"""The vectors of a token: given its number among those that were drawn, and the id in the row that drew it."""


def asks_more(steps: Sequence[SequenceStep]) -> bool:
    """Whether one asks for more than its token."""
    return any(step.scoring is not None or step.tensors for step in steps)


def tell(
    steps: Sequence[SequenceStep], drawn: Iterable[Sampled], score: Score, at_once: int, vectors: Vectors
) -> list[Sampled]:
    """One answer for each step that wants one.

    Args:
        drawn: of the steps with `sampling`.
        score: given at most at_once rows.
    """
    scored, tokens = _scored(steps, score, at_once), enumerate(drawn)
    answers = []
    for step in steps:
        answer = Sampled(None)
        if step.sampling is not None:
            number, answer = next(tokens)
            if step.tensors:
                answer = replace(answer, tensors=vectors(number, step.token_ids[-1]))
        if step.scoring is not None:
            answer = _with_scores(answer, list(islice(scored, len(step.scoring.ids))))
        if step.has_result:
            answers.append(answer)
    return answers


def _scored(steps: Sequence[SequenceStep], score: Score, at_once: int) -> Iterator[Sampled]:
    """Each id that a step scores, one after the other."""
    rows: list[int] = []
    forced: list[SequenceStep] = []
    begin = 0
    for step in steps:
        if step.scoring is not None:
            first = begin + step.scoring.first
            rows += range(first, first + len(step.scoring.ids))
            forced += (forced_step(token_id, step.scoring.top) for token_id in step.scoring.ids)
        begin += len(step.token_ids)
    for place in range(0, len(rows), at_once):
        yield from score(rows[place : place + at_once], forced[place : place + at_once])


def forced_step(token_id: int, top: int) -> SequenceStep:
    """A row that draws this id, and tells about it."""
    sampling = SamplingParams(temperature=0, logprobs=True, top_logprobs=top)
    changes = LogitChanges(biased=array("i", [token_id]), biases=array("d", [_BEYOND_ALL]))
    return SequenceStep((0,), 0, (0,), sampling, changes=changes)


def _with_scores(answer: Sampled, scored: list[Sampled]) -> Sampled:
    """A prompt that has no log-probabilities ends its sequence, as a token would that cannot be drawn."""
    errors = [one.error for one in scored if one.error]
    if answer.error or errors:
        return Sampled(None, error=answer.error or errors[0])
    tops = [pair for one in scored for pair in one.top]
    scores = Scores(
        logprobs=[one.logprob for one in scored if one.logprob is not None],
        top_ids=[token_id for token_id, _ in tops],
        top_logprobs=[logprob for _, logprob in tops],
    )
    return replace(answer, scores=scores)
