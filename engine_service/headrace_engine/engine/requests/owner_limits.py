"""Limits of an owner that its gateway sends with a start: of requests in progress, of waiting ones, and of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace_engine.engine.models.model import Model
from headrace_engine.engine.requests.overload import time_to_budget, time_to_come_back
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.results.budget import Need
from headrace_engine.engine.results.usage import Usage
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.request_types import OwnerLimit, OwnerLimits


class OwnerLimitCheck:
    """Checks a request against the limits of its owner.

    Args:
        limits: of the owner, with what it uses of other engines.
        usage: what it uses here.
        model: the model of the request.
        requests: the owner's requests to the model, oldest first.
        now: seconds since the Unix epoch.
    """

    def __init__(
        self, limits: OwnerLimits, usage: Usage, model: Model, requests: Iterable[Request], now: float
    ) -> None:
        self._limits, self._usage, self._model = limits, usage, model
        self._time_left: Callable[[], float] = lambda: time_to_budget(model, requests, now)

    def check(self, need: Need, sequences: int) -> None:
        """Refuse a request that would exceed one of them.

        Args:
            need: bytes that it may need.
            sequences: number of those that are computed at once: of a search, its beams.

        Raises:
            ResourceExhausted: QUEUE_FULL or RESULTS_FULL, with the name of the key and of the limit.
            InvalidArgument: it alone exceeds the limit of bytes.
        """
        limits, usage = self._limits, self._usage
        if (limit := limits.concurrent_requests) is not None and usage.requests + limit.elsewhere >= limit.most:
            self._refuse("concurrent_requests", limit, usage.requests, "requests in progress", self._time_left())
        if (limit := limits.waiting_requests) is not None and self._would_wait(sequences):
            waiting = usage.waiting + limit.elsewhere
            if waiting >= limit.most:
                delay = time_to_come_back(self._model)
                self._refuse("waiting_requests", limit, usage.waiting, "requests waiting", delay)
        if (limit := limits.kept_bytes) is not None:
            self._check_bytes(limit, need)

    def _would_wait(self, sequences: int) -> bool:
        """True if not all of these sequences, and of those that wait, enter the batch at once."""
        outputs = self._model.outputs
        batch = self._model.effective.config.max_batch or 0
        slots = batch - (outputs.live - len(outputs.queue))
        return len(outputs.queue) + sequences > max(0, slots)

    def _check_bytes(self, limit: OwnerLimit, need: Need) -> None:
        if need.bytes > limit.most:
            may = f'may need {need.bytes} bytes for {need.text}, and API key "{self._limits.key}" may keep {limit.most}'
            raise InvalidArgument.field("config.max_new_tokens", f"{may} (kept_bytes): ask for fewer tokens")
        if self._usage.bytes + limit.elsewhere + need.bytes > limit.most:
            what = f"bytes kept, and this request may need {need.bytes}"
            self._refuse("kept_bytes", limit, self._usage.bytes, what, self._time_left(), reason="RESULTS_FULL")

    def _refuse(
        self, name: str, limit: OwnerLimit, used: int, what: str, delay: float, reason: str = "QUEUE_FULL"
    ) -> None:
        value = used + limit.elsewhere
        raise ResourceExhausted(
            f'API key "{self._limits.key}" has {value} {what}; allowed: {limit.most} ({name}). '
            f"Try again in {delay:.1f} s",
            reason=reason,
            retry_after=delay,
            metadata={"limit": name},
        )
