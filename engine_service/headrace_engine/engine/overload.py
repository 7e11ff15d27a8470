"""Refusing what there is no place for now, with a time to come back."""

from __future__ import annotations

from headrace_engine.engine.model import Model
from headrace_engine.errors import ResourceExhausted


def check_queue(model: Model, priority: int) -> int:
    """Requests that are served before the next one of this priority.

    Raises:
        ResourceExhausted: QUEUE_FULL, too many wait already.
    """
    config, outputs = model.effective.config, model.outputs
    waiting, running = outputs.waiting, outputs.live - outputs.waiting
    free = max(0, (config.max_batch or 0) - running)
    most = config.max_waiting or 0
    if waiting >= most + free:
        delay = time_to_come_back(model)
        raise ResourceExhausted(
            f"{waiting} requests are waiting (max_waiting {most}). Try again in {delay:.1f} s",
            retry_after=delay,
            waiting_ahead=outputs.ahead_of(priority),
            max_waiting=most,
        )
    return outputs.ahead_of(priority)


def time_to_come_back(model: Model) -> float:
    """Seconds in which a place should be free: the time that a running request takes, shared by all of the batch."""
    outputs = model.outputs
    running = max(1, outputs.live - outputs.waiting)
    seconds = outputs.mean_duration if outputs.mean_service is None else outputs.mean_service
    return min(60.0, max(0.1, seconds / running))
