"""The sequences of a scheduler from their arrival to their end: which run, and which lose their blocks.

Every sequence is in the waiting queue or among the running ones. It goes from one to the other by `Starter`, back by
`preempt`, and out of both by `end`, which gives its blocks back.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from itertools import count
from operator import attrgetter

from headrace_engine.characters.stop_words import WordReader
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.scheduling.beam_search import BeamSearch
from headrace_engine.core.scheduling.groups import Groups
from headrace_engine.core.scheduling.schedule import Schedule
from headrace_engine.core.scheduling.searches import Searches
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.core.scheduling.waiting import WaitingQueue
from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.commands import AddSequence


class LiveSequences:
    """The sequences that have not ended, by key.

    Args:
        patience: number of later sequences that may leave the queue before one.

    Attributes:
        running: those in the batch, by precedence.
        waiting: the others.
        groups: the groups that some of them belong to.
        searches: the beam searches that some of them compute beams of.
    """

    def __init__(self, pool: BlockPool, tables: BlockTables, patience: int) -> None:
        self._pool = pool
        self._tables = tables
        self._arrivals = count()
        self._by_key: dict[int, Sequence] = {}
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue(patience, self.running)
        self.groups = Groups(pool.block_size)
        self.searches = Searches(tables)

    def __len__(self) -> int:
        return len(self._by_key)

    def all(self) -> Collection[Sequence]:
        """Return all sequences."""
        return self._by_key.values()

    def add(self, request: AddSequence, guide: Guide | None = None, words: WordReader | None = None) -> Sequence:
        """Queue a sequence; see `Scheduler.add`.

        Raises:
            ValueError: its key is in use.
        """
        if request.key in self._by_key:
            raise ValueError(f"key {request.key} is in use")
        sequence = Sequence(request, next(self._arrivals), self._tables.cursor(request), guide)
        self._by_key[request.key] = sequence
        self.groups.join(sequence)
        self.searches.join(sequence, words)
        self.waiting.push(sequence)
        return sequence

    def find(self, key: int) -> Sequence | None:
        """Return the sequence with this key; of a beam search, the first of its sequences."""
        return self.searches.find(key) or self._by_key.get(key)

    def end(self, sequence: Sequence) -> None:
        """End a sequence, waiting or running, and release its blocks; one of a beam search, with the whole search."""
        if sequence.search is None:
            self._end_one(sequence)
            return
        self.searches.leave(sequence.search)
        for member in sequence.search.members:
            self._end_one(member)

    def ensure_block(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Give a sequence the block for its next token; return False if it lost its own blocks instead."""
        while not self._tables.can_extend(sequence):
            # The last in precedence gives way, which may be this sequence itself.
            self._reclaim(self.running[-1], schedule)
            if sequence.status is not SequenceStatus.RUNNING:
                return False
        self._tables.extend(sequence)
        return True

    def preempt(self, sequence: Sequence, schedule: Schedule) -> None:
        """Move a running sequence back to the queue. It keeps its ids, which are recomputed when it resumes.

        Beams go back together, as one sequence.
        """
        if sequence.search is not None:
            first, *others = sequence.search.members
            # The first computes again what all beams have in common; for the others, `branch` makes new sequences then.
            for other in others:
                self._end_one(other)
            sequence = first
        self.running.remove(sequence)
        # Its blocks go to the pool, and full ones stay in the prefix cache: it may find them again when it resumes.
        self._tables.close(sequence)
        if sequence.search is not None:
            self.searches.restore(sequence.search)
        sequence.status = SequenceStatus.WAITING
        sequence.preemptions += 1
        self.waiting.push(sequence)
        schedule.preempted += sequence.keys

    def branch(self, search: BeamSearch, schedule: Schedule) -> None:
        """Give the beams of a search their sequences, unless it loses its blocks to those before it instead."""
        # First: the blocks of beams that end here are there for those that go on.
        for member in self.searches.unneeded(search):
            search.members.remove(member)
            self._end_one(member)
        missing = self.searches.missing_blocks(search)
        while not self._pool.can_allocate(missing):
            last = self.running[-1]
            self._reclaim(last, schedule)
            if last.search is search:
                return
        for sequence in self.searches.branch(search):
            self._by_key[sequence.key] = sequence
            insort(self.running, sequence, key=attrgetter("precedence"))

    def _reclaim(self, sequence: Sequence, schedule: Schedule) -> None:
        """Take the blocks of a running sequence: end it or preempt it, by its interrupt policy."""
        if sequence.search is not None:
            schedule.drop_rows(sequence.search)
        if sequence.request.interrupt_policy is InterruptPolicy.RETURN:
            self.end(sequence)
            schedule.interrupted += sequence.keys
        else:
            self.preempt(sequence, schedule)

    def _end_one(self, sequence: Sequence) -> None:
        # A step in flight may still write to them. That is safe: the runner executes in order, so the blocks' next
        # owner writes later; and blocks in the prefix cache are full, which no row of the sequence writes to.
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        self._tables.close(sequence)
        self.groups.leave(sequence)
        sequence.status = SequenceStatus.ENDED
        del self._by_key[sequence.key]
