"""Lets waiting sequences start, where there are blocks and places for them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.scheduling.pace import Allowance
from headrace_engine.core.scheduling.schedule import Limits, Schedule
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.core.scheduling.sharing import Entrance
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.core.scheduling.waiting import Passed, WaitingQueue
from headrace_engine.messages import Scheduled
from headrace_engine.stat_types import Counters


class Starter:
    """Moves sequences from the waiting queue to the running ones.

    Every running sequence that will still grow has one block held back for it. Without that reserve, a new sequence
    would push another one out, or be pushed out itself, within a few steps.

    Args:
        waiting: the scheduler's queue.
        running: its running sequences, by rank.
        counters: what the scheduler counts.
    """

    def __init__(
        self,
        pool: BlockPool,
        tables: BlockTables,
        limits: Limits,
        waiting: WaitingQueue,
        running: list[Sequence],
        counters: Counters,
    ) -> None:
        self._pool = pool
        self._tables = tables
        self._limits = limits
        self._waiting = waiting
        self._running = running
        self._counters = counters

    def start(
        self,
        candidates: Iterable[Sequence],
        schedule: Schedule,
        allowance: Allowance,
        step: int,
        entrance: Entrance | None = None,
    ) -> list[Sequence]:
        """Start waiting sequences while there is room, past those that need more than there is.

        Args:
            candidates: some of those that wait, in the order of service.
            allowance: of the step: where it is used up, nobody starts.
            step: its number.
            entrance: who may begin beside the prompts under way; None: all of the candidates.

        Returns:
            Those that started. Nothing is computed for them yet.
        """
        reserve = sum(map(self._tables.grows, self._running))
        passed, begun = Passed(self._limits), list[Sequence]()
        for sequence in candidates:
            if sequence.held:
                continue
            if self._is_closed(allowance, reserve) or passed.bars(sequence):
                break
            cached = self._tables.find_cached(sequence)
            grown = reserve + self._tables.grows(sequence)
            if entrance is not None and not entrance.admits(sequence, len(cached) * self._pool.block_size):
                passed.skip()
            elif self._tables.can_open(sequence, cached, grown):
                self._start(sequence, cached, schedule, step)
                begun.append(sequence)
                passed.note_overtaking()
                reserve = grown
                if entrance is not None:
                    entrance.note(sequence)
            else:
                passed.add(sequence)
        return begun

    def _is_closed(self, allowance: Allowance, reserve: int) -> bool:
        """Whether no sequence may start in this step."""
        full = len(self._running) == self._limits.most or not allowance.ids
        return full or not self._pool.can_allocate(reserve + 1)

    def _start(self, sequence: Sequence, cached: list[int], schedule: Schedule, step: int) -> None:
        self._waiting.remove(sequence)
        self._tables.open(sequence, cached)
        sequence.status = SequenceStatus.RUNNING
        sequence.advanced = step
        insort(self._running, sequence, key=attrgetter("rank"))
        if not sequence.started:
            self._note_start(sequence, cached, schedule)

    def _note_start(self, sequence: Sequence, cached: list[int], schedule: Schedule) -> None:
        sequence.started = True
        found = min(sequence.computed, sequence.prompt_length)
        fetched = self._tables.count_fetched(cached, found)
        schedule.scheduled.append(Scheduled(sequence.key, found, fetched))
        if sequence.cursor is not None:
            self._counters.prefix_cache_hit_tokens += sequence.computed
            self._counters.prefix_cache_host_hit_tokens += self._tables.count_fetched(cached, sequence.computed)
            self._counters.prefix_cache_miss_tokens += sequence.remaining
