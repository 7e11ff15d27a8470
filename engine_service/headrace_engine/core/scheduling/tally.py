"""What the scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.messages import CoreStat


@dataclass(slots=True)
class Tally:
    """Tokens since the start.

    Attributes:
        hits: that sequences which may use the prefix cache began with.
        fetched: of these, those that came from host memory.
        misses: that such sequences had to compute when they began.
        prefilled: of prompts, or computed again, that were computed.
        generated: that were drawn.
    """

    hits: int = 0
    fetched: int = 0
    misses: int = 0
    prefilled: int = 0
    generated: int = 0

    def note_start(self, sequence: Sequence, fetched: int) -> None:
        """A sequence is in a step for the first time; fetched of its first tokens came from host memory."""
        if sequence.cursor is not None:
            self.hits += sequence.computed
            self.fetched += fetched
            self.misses += sequence.remaining

    def stat(self, running: int, waiting: int, pool: BlockPool, host: HostTier) -> CoreStat:
        """Gauges now, and what was counted."""
        return CoreStat(
            running=running,
            waiting=waiting,
            blocks_total=pool.total,
            blocks_used=pool.used,
            blocks_cached=pool.cached,
            blocks_free=pool.free,
            host_blocks_total=host.total,
            host_blocks_used=host.used,
            prefix_cache_hit_tokens=self.hits,
            prefix_cache_host_hit_tokens=self.fetched,
            prefix_cache_miss_tokens=self.misses,
            prefilled_tokens=self.prefilled,
            generated_tokens=self.generated,
        )
