"""When a request can end at the soonest, by what was measured, and the refusal of deadlines before that."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace_engine.commands import AddSequence
from headrace_engine.engine.config.generation import Generation, has_candidates
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.outputs import is_first
from headrace_engine.errors import DeadlineExceeded

_RIVALS = 3
"""Tokens of shorter prompts that are computed for one of a prompt that has waited long for its turn."""

_PATIENCE = 16
"""Steps after which the core lets a prompt go on that has computed nothing, whatever its priority."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks for at least.

    Attributes:
        known: tokens of the prompt, and those that an engine before this one generated.
        generated: tokens that it has to generate before anything can end it, in each sequence.
        sequences: how many it computes side by side, from one prompt.
        reuses: it may find its beginning in the prefix cache.
    """

    known: int
    generated: int
    sequences: int = 1
    priority: int = 0
    reuses: bool = True


@dataclass(frozen=True, slots=True)
class Forecast:
    """The soonest end of a request in seconds from now, by its parts; 0 where nothing was measured."""

    queue: float = 0.0
    prompt: float = 0.0
    generation: float = 0.0

    @property
    def total(self) -> float:
        """Seconds from now to the end."""
        return self.queue + self.prompt + self.generation


def work_of(generation: Generation, prompt_length: int, delivered: int) -> Work:
    """Return what a request asks for, of which so many tokens were delivered before; candidates start again."""
    config = generation.effective
    delivered = 0 if has_candidates(config) else delivered
    stops = config.stop_words or config.stop_words_ids or config.stop_token_ids or config.response_format
    least = max(1, generation.min_new) if generation.eos_ids or stops else generation.max_new
    return Work(
        known=prompt_length + delivered,
        generated=max(1, least - delivered),
        sequences=max(config.n or 1, config.best_of or 1),
        priority=config.priority or 0,
        reuses=config.use_prefix_cache is not False and config.prompt_logprobs is None,
    )


def forecast(model: Model, work: Work) -> Forecast:
    """Return the soonest end of a request that would start now."""
    config, outputs, steps = model.effective.config, model.outputs, model.outputs.history.step_times
    most, batch = config.max_prefill_tokens or 1, config.max_batch or 1
    running = outputs.live - outputs.waiting
    ahead = [each for each in outputs.commands_waiting() if _is_ahead(each, work)]
    missing = running + len(ahead) + work.sequences - batch
    new = 1 - outputs.best_reuse
    own = max(1, math.floor(work.known * new)) if work.reuses else work.known
    # Who waits for a slot in the batch waits for others to end: their prompts are in that time.
    prompts = 0 if missing > 0 else _before(ahead, work, new, own, most)
    return Forecast(
        queue=max(0, missing) * (outputs.mean_service or 0.0) / batch,
        prompt=steps.time_of_all(prompts + own, most),
        generation=(work.generated - 1) * steps.time_of(min(running + work.sequences, batch)),
    )


def _is_ahead(other: AddSequence, work: Work) -> bool:
    """Return whether a waiting sequence is served before a new request: of its priority, one that is no longer."""
    length = len(other.prompt) + len(other.generated)
    return other.priority > work.priority or (other.priority == work.priority and length <= work.known)


def _before(ahead: Iterable[AddSequence], work: Work, new: float, own: int, most: int) -> int:
    """Prompt tokens that are computed before the last one of a request, at least.

    Beside those of its priority it has a share of each step, and beside higher ones a block of some.

    Args:
        new: share of a prompt that is not found in the prefix cache, at least.
        own: tokens of it that are computed.
        most: tokens of a step.
    """
    higher = equal = 0
    for other in filter(is_first, ahead):
        if other.priority > work.priority:
            higher += len(other.prompt)
        else:
            equal += len(other.prompt)
    shared = min(math.floor(equal * new), _RIVALS * own)
    return shared + min(math.floor(higher * new), _PATIENCE * most)


def check_deadline(model: Model, deadline: float | None, spent: float, work: Work) -> None:
    """Refuse a deadline that cannot be met.

    Args:
        deadline: seconds from the request's arrival; None: it has none.
        spent: seconds since then.

    Raises:
        DeadlineExceeded: DEADLINE_NOT_MET, with what the time is needed for.
    """
    if deadline is None:
        return
    soonest = forecast(model, work)
    if spent < deadline and spent + soonest.total <= deadline:
        return
    parts = {
        "to prepare it": spent,
        f"for requests ahead of it (priority {work.priority})": soonest.queue,
        f"for {work.known} prompt tokens": soonest.prompt,
        f"for at least {work.generated} new tokens": soonest.generation,
    }
    shown = ", ".join(f"{seconds:.3g} s {what}" for what, seconds in parts.items() if seconds >= 0.0005)
    text = f"by the rates measured it takes {spent + soonest.total:.3g} s at least ({shown or 'it has passed'})"
    raise DeadlineExceeded(f"the deadline of {deadline:g} s cannot be met: {text}", metadata={"model_name": model.name})
