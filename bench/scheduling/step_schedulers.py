"""Step schedulers of other systems and ours, under the same load and cost of steps.

Only the rules for steps of each are reimplemented: blocks and slots are unlimited, and all steps have the cost of one
machine. Sources of the rules: vllm-project/vllm at b4622cf924bc,
`vllm/v1/core/sched/scheduler.py` (`schedule`); sgl-project/sglang at ad0119fdde51,
`python/sglang/srt/managers/schedule_policy.py` (`PrefillAdder`), which prefers prompts to running streams unless chunks
are mixed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from headrace_engine.block_keys import Scope
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.scheduling.pace import Pace
from headrace_engine.core.scheduling.schedule import Limits
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class Costs:
    """Cost of a step, in seconds.

    Attributes:
        step: cost of any step.
        row: cost of each generated token.
        token: cost of each prompt id.
        pair: cost of each prompt id with each id before it.
    """

    step: float
    row: float
    token: float
    pair: float

    def of(self, rows: list[tuple[int, int]]) -> float:
        """Return the cost of a step with these rows: each computes the second number of ids after the first."""
        prompts = sum(count * (self.token + self.pair * (start + count / 2)) for start, count in rows if count > 1)
        return self.step + self.row * sum(count == 1 for _, count in rows) + prompts


@dataclass(eq=False)
class Request:
    """A request of the load, and the times of its tokens.

    Attributes:
        kind: "stream", "long" or "short".
    """

    kind: str
    arrival: float
    prompt: int
    new: int
    computed: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Number of ids to compute before its next token."""
        return self.prompt + len(self.times) - self.computed

    @property
    def ended(self) -> bool:
        """True if it has all its tokens."""
        return len(self.times) == self.new

    @property
    def gaps(self) -> list[float]:
        """Return the seconds between its tokens."""
        return [later - earlier for earlier, later in pairwise(self.times)]


Rows = list[tuple[Request, int]]
Step = Callable[[list[Request], float], Rows]
"""Chooses the rows of a step among requests that have arrived and not ended, in order of arrival."""


def load() -> list[Request]:
    """Return four streams; after a second two prompts of 8,000 ids; throughout, a short request each second."""
    streams = [Request("stream", 0.0, 20, 10_000) for _ in range(4)]
    longs = [Request("long", arrival, 8000, 4) for arrival in (1.0, 1.5)]
    shorts = [Request("short", 1.2 + place, 100, 20) for place in range(40)]
    return sorted([*streams, *longs, *shorts], key=lambda each: each.arrival)


def simulate(step: Step, costs: Costs) -> list[Request]:
    """Simulate the load under a scheduler, until all but the streams have ended."""
    requests, now = load(), 0.0
    wanted = [each for each in requests if each.kind != "stream"]
    while not all(each.ended for each in wanted):
        rows = step([each for each in requests if each.arrival <= now and not each.ended], now)
        if not rows:
            now = min(each.arrival for each in requests if each.arrival > now)
            continue
        now += costs.of([(each.computed, count) for each, count in rows])
        for each, count in rows:
            each.computed += count
            if not each.left:
                each.times.append(now)
    return requests


def vllm(budget: int, threshold: int = 0) -> Step:
    """Return vLLM's rules: running requests in order of arrival, prompts and generations alike; then waiting ones."""

    def step(requests: list[Request], now: float) -> Rows:
        rows, left = Rows(), budget
        for each in sorted(requests, key=lambda each: not each.computed):
            count = min(each.left, threshold or each.left, left)
            if count:
                rows.append((each, count))
                left -= count
        return rows

    return step


def sglang(chunk: int, *, mixed: bool) -> Step:
    """Return SGLang's rules: the unfinished prompt, then new ones up to the chunk size; streams alongside if mixed."""

    def step(requests: list[Request], now: float) -> Rows:
        rows, left = Rows(), chunk
        running = [each for each in requests if each.times]
        for each in sorted((each for each in requests if not each.times), key=lambda each: not each.computed):
            count = min(each.left, left)
            if count:
                rows.append((each, count))
                left -= count
        return [*rows, *((each, 1) for each in running)] if mixed or not rows else rows

    return step


def ours(costs: Costs, most: int, target: float | None) -> Step:
    """Return Headrace's own scheduler, which learns the cost of steps as it runs."""
    pace = Pace(target)
    pace.note(0, [(0, 128)], costs.of([(0, 128)]))
    pace.note(1, [], costs.of([(0, 1)]))
    limits = Limits(max_batch=256, max_tokens=most, caching=False)
    scheduler = Scheduler(BlockPool(1 << 16, 16), limits, Scope(), pace=pace)
    known: dict[Request, int] = {}

    def step(requests: list[Request], now: float) -> Rows:
        for each in requests:
            if each not in known:
                key = known[each] = len(known)
                scheduler.add(AddSequence(key, tuple(range(each.prompt)), SamplingParams(temperature=0), each.new))
        if not scheduler.busy:
            return []
        by_key = {key: each for each, key in known.items()}
        schedule = scheduler.schedule()
        rows = [(by_key[row.sequence.key], row.count) for row in schedule.rows]
        seconds = costs.of([(each.computed, count) for each, count in rows])
        for row in schedule.rows:
            draws = row.count == row.sequence.remaining
            scheduler.advance(row.sequence, row.count)
            if draws:
                scheduler.append(row.sequence, 1)
                if row.sequence.finish_reason:
                    scheduler.end(row.sequence)
        pace.note(len(rows) - len(schedule.prompts), schedule.prompts, seconds)
        return rows

    return step


def contestants(costs: Costs) -> Iterator[tuple[str, Step]]:
    """Yield all schedulers compared, by name."""
    for budget in (2048, 512):
        yield f"vLLM, {budget} tokens a step", vllm(budget)
    yield "vLLM, 2048, prompts cut at 327 (4 % of 8192)", vllm(2048, 327)
    for chunk in (2048, 512):
        yield f"SGLang, chunks of {chunk}", sglang(chunk, mixed=False)
        yield f"SGLang, chunks of {chunk}, mixed", sglang(chunk, mixed=True)
    yield "Headrace, 2048, no target", ours(costs, 2048, 0.0)
    yield "Headrace, 2048, 0.1 s a step", ours(costs, 2048, 0.1)
    yield "Headrace, 2048, steps that follow the streams", ours(costs, 2048, None)
