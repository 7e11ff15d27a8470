"""Optional outputs of a step besides its tokens: prompt logprobs, tensors, and sums of last hidden states."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from headrace_engine.core.row_fields import LogitChanges, PromptLogprobs
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.sampling_params import SamplingParams

_BEYOND_ALL = 3.4e38
"""Bias that forces an id to be sampled. Logprobs are those of the model's own logits, without it."""

Score = Callable[[list[int], list[SequenceStep]], list[Sampled]]
"""Sample from the logits of the given rows of the batch, as the steps specify."""

Vectors = Callable[[int, int], bytes]
"""Return the vectors of a token, given its index among the sampled ones and the last id of its row."""

Pool = Callable[[int, int], bytes]
"""Return the sum of the last hidden states of rows of the batch, from the first to before the last, as float64."""


def wants_extras(steps: Sequence[SequenceStep]) -> bool:
    """Return True if a step requests any of them."""
    return any(step.prompt_logprobs is not None or step.tensors or step.pooled is not None for step in steps)


def collect_extras(
    steps: Sequence[SequenceStep], sampled: Iterable[Sampled], score: Score, at_once: int, vectors: Vectors, pool: Pool
) -> list[Sampled]:
    """Return one result for each step that `has_result`.

    Args:
        sampled: results of the steps with `sampling`.
        score: computes at most at_once rows per call.
    """
    forced_rows, tokens = _prompt_logprobs(steps, score, at_once), enumerate(sampled)
    answers = []
    begin = 0
    for step in steps:
        answer = Sampled(None)
        if step.sampling is not None:
            number, answer = next(tokens)
            if step.tensors:
                answer = replace(answer, tensors=vectors(number, step.token_ids[-1]))
        if step.prompt_logprobs is not None:
            answer = _add_prompt_logprobs(answer, list(islice(forced_rows, len(step.prompt_logprobs.ids))))
        if step.pooled is not None:
            answer = replace(answer, pooled=pool(begin + step.pooled, begin + len(step.token_ids)))
        if step.has_result:
            answers.append(answer)
        begin += len(step.token_ids)
    return answers


def _prompt_logprobs(steps: Sequence[SequenceStep], score: Score, at_once: int) -> Iterator[Sampled]:
    """Yield the logprobs of each prompt id that a step requests, in order."""
    asked = [step.prompt_logprobs for step in steps if step.prompt_logprobs is not None]
    forced = iter([forced_step(token_id, each.top) for each in asked for token_id in each.ids])
    for rows in scored_rows(steps, at_once):
        yield from score(rows, list(islice(forced, len(rows))))


def scored_rows(steps: Sequence[SequenceStep], at_once: int) -> list[list[int]]:
    """Return the rows of the batch whose logits give prompt logprobs, in order, at most at_once together."""
    rows: list[int] = []
    begin = 0
    for step in steps:
        if step.prompt_logprobs is not None:
            first = begin + step.prompt_logprobs.first
            rows += range(first, first + len(step.prompt_logprobs.ids))
        begin += len(step.token_ids)
    return [rows[first : first + at_once] for first in range(0, len(rows), at_once)]


def forced_step(token_id: int, top: int) -> SequenceStep:
    """Return a step that is forced to sample this id, and reports its logprobs."""
    sampling = SamplingParams(temperature=0, logprobs=True, top_logprobs=top)
    changes = LogitChanges(biased=array("i", [token_id]), biases=array("d", [_BEYOND_ALL]))
    return SequenceStep((0,), 0, (0,), sampling, changes=changes)


def _add_prompt_logprobs(answer: Sampled, forced_rows: list[Sampled]) -> Sampled:
    """Add prompt logprobs to a result. An error in any of them fails the sequence, like an error in sampling."""
    errors = [one.error for one in forced_rows if one.error]
    if answer.error or errors:
        return Sampled(None, error=answer.error or errors[0])
    tops = [pair for one in forced_rows for pair in one.top]
    found = PromptLogprobs(
        logprobs=[one.logprob for one in forced_rows if one.logprob is not None],
        top_ids=[token_id for token_id, _ in tops],
        top_logprobs=[logprob for _, logprob in tops],
    )
    return replace(answer, prompt_logprobs=found)
