"""Starts waiting sequences when there are blocks and batch slots for them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.scheduling.live import LiveSequences
from headrace_engine.core.scheduling.pace import Allowance
from headrace_engine.core.scheduling.schedule import Limits, Schedule
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.core.scheduling.sharing import Entrance
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.core.scheduling.waiting import PassedOver
from headrace_engine.ipc.step_output import Scheduled
from headrace_engine.stat_types import Counters


class Starter:
    """Moves sequences from the waiting queue to the running ones.

    Blocks are held in reserve for every running sequence that can still grow. Without that, a new sequence would cause
    a preemption within a few steps, possibly its own. A beam search starts with slots of the batch for all its beams.

    Args:
        live: the scheduler's sequences.
        counters: its counters.
    """

    def __init__(
        self,
        pool: BlockPool,
        tables: BlockTables,
        limits: Limits,
        live: LiveSequences,
        counters: Counters,
    ) -> None:
        self._pool = pool
        self._tables = tables
        self._limits = limits
        self._live = live
        self._counters = counters

    def start(
        self,
        candidates: Iterable[Sequence],
        schedule: Schedule,
        allowance: Allowance,
        step: int,
        entrance: Entrance | None = None,
    ) -> list[Sequence]:
        """Start waiting sequences while there are blocks, skipping those that need more than are left.

        Args:
            candidates: waiting sequences, in order of service.
            allowance: the step's allowance: none starts once it is used up.
            step: number of the step.
            entrance: admits sequences alongside the running prompts; None: admit all candidates.

        Returns:
            The started sequences. Nothing is computed for them yet.
        """
        reserve, slots = (
            sum(map(self._tables.growth, self._live.running)),
            sum(each.slots for each in self._live.running),
        )
        passed, started_now = PassedOver(self._limits), list[Sequence]()
        if self._is_closed(allowance, reserve, slots):
            return started_now
        for sequence in candidates:
            if sequence.held:
                continue
            if self._is_closed(allowance, reserve, slots) or passed.must_wait(sequence):
                break
            # Found, not held: nothing may be allocated between this and `open`, which takes references to these blocks.
            cached = self._tables.find_cached(sequence)
            reserve_after = reserve + self._tables.growth(sequence)
            fits = slots + sequence.slots <= self._limits.most
            if entrance is not None and not entrance.admits(sequence, len(cached) * self._pool.block_size):
                passed.skip()
            elif fits and self._tables.can_open(sequence, cached, reserve_after):
                self._start(sequence, cached, schedule, step)
                started_now.append(sequence)
                passed.note_overtaking()
                reserve, slots = reserve_after, slots + sequence.slots
                if entrance is not None:
                    entrance.note(sequence)
            else:
                passed.add(sequence)
        return started_now

    def _is_closed(self, allowance: Allowance, reserve: int, slots: int) -> bool:
        """Return True if no further sequence can start in this step."""
        full = slots == self._limits.most or not allowance.ids
        return full or not self._pool.can_allocate(reserve + 1)

    def _start(self, sequence: Sequence, cached: list[int], schedule: Schedule, step: int) -> None:
        self._live.waiting.remove(sequence)
        self._tables.open(sequence, cached)
        sequence.status = SequenceStatus.RUNNING
        sequence.advanced = step
        insort(self._live.running, sequence, key=attrgetter("precedence"))
        if not sequence.started:
            self._note_start(sequence, cached, schedule)

    def _note_start(self, sequence: Sequence, cached: list[int], schedule: Schedule) -> None:
        sequence.started = True
        found = min(sequence.computed, sequence.prompt_length)
        fetched = self._tables.count_fetched(cached, found)
        schedule.scheduled += (Scheduled(key, found, fetched) for key in sequence.keys)
        if sequence.cursor is not None:
            self._counters.prefix_cache_hit_tokens += sequence.computed
            self._counters.prefix_cache_host_hit_tokens += self._tables.count_fetched(cached, sequence.computed)
            self._counters.prefix_cache_miss_tokens += sequence.remaining
