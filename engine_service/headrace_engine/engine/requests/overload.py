"""Refuse requests that exceed the queue or the budget, with a time to retry after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from headrace_proto.pure.shares import within_share

from headrace_engine.engine.config.beam_fields import computed_together, has_beams
from headrace_engine.engine.config.generation import Generation, has_candidates
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.requests.requests import Request
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.generation_config import GenerationConfig

_LOOKED_AT = 1000
"""Maximum number of an owner's requests, oldest first, to search for the one that should end first."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives at the queue.

    Attributes:
        party: the party whose share of the queue it takes.
        prompt_length: in tokens.
        sequences: number of its sequences that have not ended elsewhere.
    """

    party: str
    generation: Generation
    prompt_length: int
    sequences: int

    @property
    def config(self) -> GenerationConfig:
        """Its effective config."""
        return self.generation.effective

    @property
    def count(self) -> int:
        """Number of sequences that have to wait: with best_of, the candidates; in a beam search, the beams."""
        together = has_candidates(self.config) or has_beams(self.config)
        return computed_together(self.config) if self.sequences and together else self.sequences


def check_queue(model: Model, arrival: Arrival) -> int:
    """Return the number of sequences that are served before those of an arriving request.

    Of max_waiting, a party may hold at most three times as many slots as it leaves free, and always one; sequences
    that enter the batch at once need none.

    Raises:
        ResourceExhausted: QUEUE_FULL: too many sequences wait, or too many of this party.
    """
    config, outputs = model.effective.config, model.outputs
    batch, most, line = config.max_batch or 0, config.max_waiting or 0, outputs.queue
    slots = max(0, batch - (outputs.live - len(line)))
    free = most - max(0, len(line) + arrival.count - slots)
    held = max(0, line.of(arrival.party) + arrival.count - slots)
    ahead = outputs.ahead_of(arrival.config.priority or 0)
    if arrival.count and not within_share(held, free):
        delay = time_to_come_back(model)
        text = f"{_why_full(model, arrival, full=free < 0)}. Try again in {delay:.1f} s"
        raise ResourceExhausted(text, retry_after=delay, waiting_ahead=ahead, max_waiting=most)
    return ahead


def check_fits(model: Model, arrival: Arrival) -> None:
    """Refuse a request that the model could never compute, however little there is to do.

    Raises:
        InvalidArgument: naming n, best_of or num_beams, with the numbers.
    """
    _check_beams(model, arrival)
    config = model.effective.config
    batch, most = config.max_batch or 0, config.max_waiting or 0
    beyond = max(0, arrival.count - batch)
    if beyond and not within_share(beyond, most - beyond):
        name = "best_of" if has_candidates(arrival.config) else "num_beams" if has_beams(arrival.config) else "n"
        text = f"= {arrival.count} never starts: {batch} sequences are computed at once (max_batch)"
        raise InvalidArgument.field(
            f"config.{name}", f"{text}, and of the {most} that may wait (max_waiting) one caller has three quarters"
        )


def _check_beams(model: Model, arrival: Arrival) -> None:
    """Refuse beams that exceed a step or the pool: they run at once, and share blocks by chance alone."""
    if not has_beams(arrival.config):
        return
    config, beams = model.effective.config, arrival.config.num_beams or 1
    prompt_length, max_new = arrival.prompt_length, arrival.generation.max_new
    batch, budget = config.max_batch or 0, config.max_prefill_tokens or 0
    if beams > min(batch, budget):
        text = f"= {beams} is more than a step computes: max_batch {batch}, max_prefill_tokens {budget}"
        raise InvalidArgument.field("config.num_beams", text)
    size, longest = config.block_size or 1, prompt_length + max_new - 1
    needed, blocks = beams * -(-longest // size), config.num_blocks or 0
    if needed > blocks:
        text = f"= {beams} needs {needed} blocks of {size} tokens for prompt {prompt_length} + {max_new} new"
        raise InvalidArgument.field("config.num_beams", f"{text} tokens; there are {blocks}: lower one of them")


def _why_full(model: Model, arrival: Arrival, *, full: bool) -> str:
    line, most = model.outputs.queue, model.effective.config.max_waiting or 0
    text = f"{_counted(len(line), line.requests)} waiting (max_waiting {most})"
    if full:
        return text if arrival.count == 1 else f"{text}, and this one has {arrival.count} sequences"
    return f"{text}, {line.of(arrival.party)} of them of this caller, whose share is used up"


def _counted(sequences: int, requests: int) -> str:
    if sequences == requests:
        return f"{requests} requests are" if requests != 1 else "1 request is"
    return f"{sequences} sequences of {requests} request{'s' if requests != 1 else ''} are"


def time_to_come_back(model: Model) -> float:
    """Return the expected seconds until a slot is free: the duration of a request divided by the batch size."""
    outputs = model.outputs
    running = max(1, outputs.live - outputs.waiting)
    recent = outputs.recent
    seconds = recent.mean_duration if recent.mean_service is None else recent.mean_service
    return min(60.0, max(0.1, seconds / running))


def time_to_budget(model: Model, requests: Iterable[Request], now: float) -> float:
    """Return the expected seconds until an owner has budget again: until the first request, or its lease, ends."""
    times = [time for each in islice(requests, _LOOKED_AT) if (time := _time_left(model, each, now)) is not None]
    return min(60.0, max(0.1, min(times, default=time_to_come_back(model))))


def _time_left(model: Model, request: Request, now: float) -> float | None:
    """Return seconds until a request frees budget: by its rate while it runs, then by its lease; None: unknown."""
    if request.ended:
        return None if request.lease_expires is None else request.lease_expires - now
    config, sequence = request.accepted.effective_config, request.sequences[0]
    begun, made = sequence.times.first_token, len(sequence.log)
    if config is None or begun is None or made < 2 or now <= begun:
        return model.outputs.recent.mean_duration
    most = config.max_new_tokens or (config.max_length or 0) - request.accepted.prompt_token_count
    return (most - made) * (now - begun) / (made - 1)
