"""Times and rates of a sequence, and of a model over the last seconds."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace_proto.pure.tracing import Event

from headrace_engine.engine.results.observations import Observations
from headrace_engine.engine.results.step_times import StepTimes
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.result_types import RequestStat
from headrace_engine.stat_types import CoreStat, Counters, Rates

Clock = Callable[[], float]
"""Seconds since the Unix epoch."""

WINDOW = 10.0
"""Seconds over which rates are measured."""


def percentile(values: list[float], share: float) -> float | None:
    """Return the smallest value that `share` of all values do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


@dataclass(slots=True)
class SequenceTimes:
    """Times and counts of a sequence.

    Attributes:
        kept: statistics from a previous engine: first times are kept, counts continue.
        owner: who counts for it; "": nobody by name.
        trace: trace context of the call that started it.
        events: what happened to it, for its trace.
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
    drafted: int = 0
    accepted: int = 0
    kept: RequestStat = field(default_factory=RequestStat)
    gaps: array[float] = field(default_factory=lambda: array("f"))
    owner: str = ""
    trace: str = ""
    events: tuple[Event, ...] = ()

    def happens(self, event: str, now: float) -> None:
        """Record an event for the trace."""
        self.events = (*self.events, (event, now))

    def token(self, now: float) -> None:
        """Record a token in the log."""
        if self.first_token is None:
            self.first_token = now
        elif self.last_token is not None:
            self.gaps.append(now - self.last_token)
        self.last_token = now

    def stat(self, generated: int) -> RequestStat:
        """Return the statistics so far."""
        kept, gaps = self.kept, sorted(self.gaps)
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
            drafted_tokens=self.drafted + (kept.drafted_tokens or 0),
            accepted_tokens=self.accepted + (kept.accepted_tokens or 0),
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
    """The steps of a model: gauges of its core, counters over all of its cores, and rates of the last seconds.

    Attributes:
        cores: number of cores started so far.
        last: the newest gauges and counters of the current core.
        counters: totals over all cores.
        step_times: durations of the current core's steps.
        observed: counts of requests and steps in buckets.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: deque[_Step] = deque()
        self.cores = 0
        self.step_times = StepTimes(self._clock)
        self.last = CoreStat()
        self.counters = Counters()
        self.observed = Observations()

    def new_core(self) -> None:
        """Record the start of a core: its counters begin at 0, ours continue."""
        self.cores += 1
        self.step_times = StepTimes(self._clock)
        self.last = CoreStat()

    def add(self, output: StepOutput, dropped: int = 0) -> None:
        """Record a finished step.

        Args:
            dropped: number of its tokens that are in no log, since their sequences had ended here; not counted.
        """
        counted = output.stat.counters - self.last.counters
        self.last = output.stat
        generated, prefilled = counted.generated_tokens, counted.prefilled_tokens
        counted.generated_tokens = kept = max(0, generated - dropped)
        self.counters += counted
        if output.batch_size:
            self.step_times.note(generated + prefilled, output.step_time)
            self.observed.step_seconds.note(output.step_time)
            self.observed.batch_size.note(output.batch_size)
            self._steps.append(_Step(self._clock(), kept, prefilled, output.step_time, output.batch_size))
        self._forget()

    @property
    def generated_tps(self) -> float:
        """Generated tokens per second, over the last seconds."""
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
