"""Statistics of a model: what its core counts and holds, and what callers see of it.

A metric has one name everywhere: its field here is called as the field of the wire's EngineStat.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import add, attrgetter, sub

from headrace_engine.model_types import ModelState


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every step.
class PoolStat:
    """Blocks of the KV pool and of its host tier now."""

    blocks_total: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    host_blocks_total: int = 0
    host_blocks_used: int = 0


@dataclass(slots=True)
class Counters:
    """Tokens counted since the start.

    Attributes:
        prefix_cache_hit_tokens: found in the prefix cache by sequences that may use it, when they began.
        prefix_cache_host_hit_tokens: of these, those that came from host memory.
        prefix_cache_miss_tokens: that such sequences had to compute when they began.
        prefilled_tokens: computed of prompts, or computed again.
        generated_tokens: sampled.
        drafted_tokens: computed before it was known whether they would be sampled.
        accepted_tokens: of these, those that were.
    """

    prefix_cache_hit_tokens: int = 0
    prefix_cache_host_hit_tokens: int = 0
    prefix_cache_miss_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*map(add, _counts(self), _counts(other)))

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*map(sub, _counts(self), _counts(other)))

    @property
    def prefix_cache_hit_rate(self) -> float | None:
        """Hits of all tokens looked up; None before the first look-up."""
        return _share(self.prefix_cache_hit_tokens, self.prefix_cache_miss_tokens)

    @property
    def prefix_cache_miss_rate(self) -> float | None:
        """Misses of all tokens looked up; None before the first look-up."""
        return _share(self.prefix_cache_miss_tokens, self.prefix_cache_hit_tokens)

    def copy(self) -> Counters:
        """Return the counts of this moment."""
        return Counters(*_counts(self))


_counts = attrgetter(*(each.name for each in fields(Counters)))


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


@dataclass(slots=True)
class CoreStat:
    """Gauges of a core after a step, and its counters since it started."""

    running: int = 0
    waiting: int = 0
    pool: PoolStat = field(default_factory=PoolStat)
    counters: Counters = field(default_factory=Counters)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a model over the last seconds."""

    generated_tps: float = 0.0
    prefilled_tps: float = 0.0
    step_time_p50: float | None = None
    step_time_p99: float | None = None
    batch_size: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStat:
    """Current state of an engine with one model.

    Attributes:
        counters: since the start of the instance, over all cores.
    """

    model_name: str
    state: ModelState
    engine: str
    instance_id: str
    core_epoch: int
    time: float
    running: int = 0
    waiting: int = 0
    tokens_total: int = 0
    tokens_free: int = 0
    pool_bytes_total: int = 0
    pool_bytes_used: int = 0
    pool: PoolStat = field(default_factory=PoolStat)
    counters: Counters = field(default_factory=Counters)
    rates: Rates = field(default_factory=Rates)
