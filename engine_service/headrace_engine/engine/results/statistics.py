"""Times and rates: of one sequence, and of one model over the last seconds."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace_engine.engine.results.step_times import StepTimes
from headrace_engine.messages import StepOutput
from headrace_engine.result_types import RequestStat
from headrace_engine.stat_types import CoreStat, Counters, Rates

Clock = Callable[[], float]
"""Seconds since the Unix epoch."""

WINDOW = 10.0
"""Seconds that rates look back."""


def percentile(values: list[float], share: float) -> float | None:
    """Return the smallest value that `share` of all values do not exceed; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


@dataclass(slots=True)
class SequenceTimes:
    """What happened to one sequence, and when.

    Attributes:
        kept: what an engine before this one reported of it: first times are kept, counts go on.
    """

    arrival: float
    prompt_length: int
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    cached_length: int | None = None
    preemptions: int = 0
    handovers: int = 0
    kept: RequestStat = field(default_factory=RequestStat)
    gaps: array[float] = field(default_factory=lambda: array("f"))

    def token(self, now: float) -> None:
        """A token is in the log."""
        if self.first_token is None:
            self.first_token = now
        elif self.last_token is not None:
            self.gaps.append(now - self.last_token)
        self.last_token = now

    def stat(self, generated: int) -> RequestStat:
        """Return the statistics so far."""
        kept, gaps = self.kept, self.gaps.tolist()
        arrival = self.arrival if kept.arrival_time is None else kept.arrival_time
        scheduled = _first(kept.scheduled_time, self.scheduled)
        first_token = _first(kept.first_token_time, self.first_token)
        last_token = _first(self.last_token, kept.last_token_time)
        cached = self.cached_length if kept.context_cached_length is None else kept.context_cached_length
        return RequestStat(
            arrival_time=arrival,
            scheduled_time=scheduled,
            first_token_time=first_token,
            last_token_time=last_token,
            finished_time=_first(kept.finished_time, self.finished),
            time_in_queue=_since(arrival, scheduled),
            time_to_first_token=_since(arrival, first_token),
            context_token_length=self.prompt_length,
            generated_token_length=generated,
            context_cached_length=cached,
            context_tps=_rate(self.prompt_length - (cached or 0), scheduled, first_token),
            generate_tps=_rate(generated - 1, first_token, last_token) if generated > 1 else None,
            inter_token_p50=_first(percentile(gaps, 0.5), kept.inter_token_p50),
            inter_token_p99=_first(percentile(gaps, 0.99), kept.inter_token_p99),
            preemptions=self.preemptions + (kept.preemptions or 0),
            handovers=self.handovers,
        )


def _first(*times: float | None) -> float | None:
    return next((time for time in times if time is not None), None)


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)


def _rate(count: int, start: float | None, end: float | None) -> float | None:
    if start is None or end is None or end <= start:
        return None
    return count / (end - start)


@dataclass(frozen=True, slots=True)
class _Step:
    time: float
    generated: int
    prefilled: int
    duration: float
    batch: int


class StepHistory:
    """The steps of all models of one name: gauges of the core, counters over all cores, and the last seconds.

    Attributes:
        cores: cores that were started.
        last: the newest gauges and counters of the core at work.
        counters: over all cores.
        step_times: what the steps of the core at work took.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: deque[_Step] = deque()
        self.cores = 0
        self.step_times = StepTimes(self._clock)
        self.last = CoreStat()
        self.counters = Counters()

    def new_core(self) -> None:
        """A core starts: its counters begin at 0, ours go on."""
        self.cores += 1
        self.step_times = StepTimes(self._clock)
        self.last = CoreStat()

    def add(self, output: StepOutput, dropped: int = 0) -> None:
        """A step is done.

        Args:
            dropped: tokens of it that are in no log, because their sequences had ended here; they count nowhere.
        """
        counted = output.stat.counters - self.last.counters
        self.last = output.stat
        generated, prefilled = counted.generated_tokens, counted.prefilled_tokens
        counted.generated_tokens = kept = max(0, generated - dropped)
        self.counters += counted
        if output.batch_size:
            self.step_times.note(generated + prefilled, output.step_time)
            self._steps.append(_Step(self._clock(), kept, prefilled, output.step_time, output.batch_size))
        self._forget()

    @property
    def generated_tps(self) -> float:
        """Tokens generated a second, over the last seconds."""
        self._forget()
        return sum(step.generated for step in self._steps) / WINDOW

    def rates(self) -> Rates:
        """Rates over the last seconds."""
        self._forget()
        durations = [step.duration for step in self._steps]
        count = len(self._steps)
        return Rates(
            generated_tps=self.generated_tps,
            prefilled_tps=sum(step.prefilled for step in self._steps) / WINDOW,
            step_time_p50=percentile(durations, 0.5),
            step_time_p99=percentile(durations, 0.99),
            batch_size=sum(step.batch for step in self._steps) / count if count else 0.0,
        )

    def _forget(self) -> None:
        horizon = self._clock() - WINDOW
        while self._steps and self._steps[0].time < horizon:
            self._steps.popleft()
