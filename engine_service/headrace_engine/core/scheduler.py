"""What the next step computes."""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from itertools import count
from operator import attrgetter

from headrace_engine.config import InterruptPolicy
from headrace_engine.core.block_pool import BlockPool, BooksError
from headrace_engine.core.host_tier import HostTier
from headrace_engine.core.prefix_cache import Cursor, Scope
from headrace_engine.core.schedule import Launched, Limits, Row, Schedule
from headrace_engine.core.sequence import Sequence, SequenceStatus
from headrace_engine.core.tables import BlockTables
from headrace_engine.core.tally import Tally
from headrace_engine.core.waiting import WaitingQueue
from headrace_engine.guided.guide import Guide
from headrace_engine.messages import AddSequence, CoreStat, Scheduled


class Scheduler:
    """Decides whose tokens are computed next.

    There is no prefill or decode phase, only ids still to compute. A sequence gets blocks for all its ids when it
    starts, so a prompt cut in chunks never runs dry halfway; only generation asks for more, and then the sequence
    last in rank gives way.
    """

    def __init__(self, pool: BlockPool, limits: Limits, scope: Scope, host: HostTier | None = None) -> None:
        self._pool = pool
        self._host = host or HostTier(0)
        self._tables = BlockTables(pool, self._host)
        self._limits = limits
        self._scope = scope
        self._arrivals = count()
        self._sequences: dict[int, Sequence] = {}
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # In the order of rank.
        self._tally = Tally()

    @property
    def busy(self) -> bool:
        """Something is left to compute."""
        return bool(self._sequences)

    @property
    def stat(self) -> CoreStat:
        """Gauges now, and counters since the start."""
        return self._tally.stat(len(self._running), len(self._waiting), self._pool, self._host)

    def add(self, request: AddSequence, guide: Guide | None = None) -> Sequence:
        """Let a sequence wait for its turn.

        Args:
            guide: where it stands in its grammar, if it has one.

        Raises:
            ValueError: its key is in use.
        """
        if request.key in self._sequences:
            raise ValueError(f"key {request.key} is in use")
        sequence = Sequence(request, next(self._arrivals), self._cursor(request), guide)
        self._sequences[request.key] = sequence
        self._waiting.push(sequence)
        return sequence

    def find(self, key: int) -> Sequence | None:
        """The sequence with this key, if it has not ended."""
        return self._sequences.get(key)

    def age(self, now: float, ttl: float) -> None:
        """It is now: drop cached blocks that nobody has used for ttl seconds."""
        self._pool.date = now
        self._tables.drop_before(now - ttl)

    def can_look_ahead(self) -> bool:
        """Whether the next step can be decided while one is under way.

        Not where it needs what that one draws, nor where somebody would have to give way: ends may leave room enough.
        """
        awaited = any(sequence.awaited for sequence in self._running)
        return not awaited and self._tables.can_extend_all(self._running)

    def schedule(self) -> Schedule:
        """The next step: generations first, then prompts under way, then new sequences.

        While a step is under way, ask `can_look_ahead` first.

        Raises:
            BooksError: there is work and none of it can be done.
        """
        schedule = Schedule(self._limits.max_tokens)
        self._generate(schedule)
        self._continue(schedule)
        if self._waiting:
            self._admit(schedule)
        schedule.copies = self._tables.take_copies()
        if self.busy and not (schedule.rows or any(sequence.under_way for sequence in self._running)):
            raise BooksError(f"{len(self._waiting)} sequences wait and none can start")
        return schedule

    def expect(self, step: Launched) -> None:
        """A step is under way: the next schedule goes on behind it."""
        for place, row in enumerate(step.schedule.rows):
            if row.sequence.status is SequenceStatus.RUNNING:
                row.sequence.expect(row.count, place if step.steps[place].sampling is not None else None)

    def advance(self, row: Row) -> None:
        """A row was computed: its keys and values are in its blocks."""
        sequence = row.sequence
        if row.count > 1 or sequence.computed < sequence.prompt_length:
            self._tally.prefilled += row.count
        sequence.land(row.count)
        self._tables.publish(sequence)

    def append(self, sequence: Sequence, token_id: int) -> None:
        """A token was drawn."""
        sequence.ids.append(token_id)
        self._tally.generated += 1

    def end(self, sequence: Sequence) -> None:
        """Compute this sequence no more, wherever it stands."""
        if sequence.status is SequenceStatus.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        self._tables.close(sequence)
        sequence.status = SequenceStatus.ENDED
        del self._sequences[sequence.key]

    def fail(self, sequence: Sequence) -> None:
        """End a sequence whose computation went wrong: what its blocks hold is trusted no more."""
        self._tables.distrust(sequence)
        self.end(sequence)

    def check_books(self) -> None:
        """Compare the books of pool and cache with the block tables of all sequences.

        Raises:
            BooksError: they differ.
        """
        self._tables.check_books(self._sequences.values())

    def _cursor(self, request: AddSequence) -> Cursor | None:
        scope = replace(self._scope, salt=request.cache_salt)
        if self._limits.caching and request.use_prefix_cache:
            return Cursor(scope, self._pool.block_size)
        return Cursor(replace(scope, group=request.group), self._pool.block_size) if request.group else None

    def _generate(self, schedule: Schedule) -> None:
        """Rows of one token. They go by rank, so whoever gives way has no row yet, and more than one id to do."""
        for sequence in tuple(self._running):
            if sequence.remaining != 1:
                continue
            if self._tables.suffices(sequence) or self._make_room(sequence, schedule):
                schedule.add(sequence)

    def _make_room(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Give a sequence the block that its next token needs; False where it had to give way itself."""
        while not self._tables.can_extend(sequence):
            last = self._running[-1]
            self._give_way(last, schedule)
            if last is sequence:
                return False
        self._tables.extend(sequence)
        return True

    def _give_way(self, sequence: Sequence, schedule: Schedule) -> None:
        """Take the blocks of a running sequence, and do with it what its policy says."""
        if sequence.request.interrupt_policy is InterruptPolicy.RETURN:
            self.end(sequence)
            schedule.interrupted.append(sequence.key)
        else:
            self._preempt(sequence)
            schedule.preempted.append(sequence.key)

    def _preempt(self, sequence: Sequence) -> None:
        """Put a running sequence back. Its ids stay, and are computed again when it has its turn."""
        self._running.remove(sequence)
        self._tables.close(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.preemptions += 1
        self._waiting.push(sequence)

    def _continue(self, schedule: Schedule) -> None:
        """Further chunks of prompts that have begun.

        Nothing starts without a token of the budget to itself, so there is one in every later step too.
        """
        for sequence in self._running:
            if sequence.remaining > 1 and schedule.budget:
                schedule.add(sequence)

    def _admit(self, schedule: Schedule) -> None:
        """Start waiting sequences while there is room, past those that need more than there is.

        Every running sequence that will still grow has one block held back for it. Without that reserve, a new
        sequence would push another one out, or be pushed out itself, within a few steps.
        """
        reserve = sum(map(self._tables.grows, self._running))
        passed: list[Sequence] = []
        for sequence in self._waiting:
            if self._is_closed(sequence, schedule, passed, reserve):
                return
            cached = self._tables.find_cached(sequence)
            grown = reserve + self._tables.grows(sequence)
            if self._tables.can_open(sequence, cached, grown):
                self._start(sequence, cached, schedule)
                self._note_overtaking(passed)
                reserve = grown
            else:
                passed.append(sequence)

    def _is_closed(self, sequence: Sequence, schedule: Schedule, passed: list[Sequence], reserve: int) -> bool:
        """Whether neither this sequence nor any behind it may start in this step."""
        if len(self._running) == self._limits.max_batch or not schedule.budget:
            return True
        if not self._pool.can_allocate(reserve + 1) or len(passed) > self._limits.lookahead:
            return True
        return any(sequence.priority < other.priority or self._stands_firm(other) for other in passed)

    def _stands_firm(self, sequence: Sequence) -> bool:
        """Whether a sequence without room lets nobody start before it: it gave way, or was overtaken, often enough."""
        return sequence.preemptions > 0 or sequence.overtaken >= self._limits.patience

    def _note_overtaking(self, passed: list[Sequence]) -> None:
        for sequence in passed:
            sequence.overtaken += 1

    def _start(self, sequence: Sequence, cached: list[int], schedule: Schedule) -> None:
        self._waiting.remove(sequence)
        self._tables.open(sequence, cached)
        sequence.status = SequenceStatus.RUNNING
        insort(self._running, sequence, key=attrgetter("rank"))
        if not sequence.started:
            self._note_start(sequence, cached, schedule)
        schedule.add(sequence)

    def _note_start(self, sequence: Sequence, cached: list[int], schedule: Schedule) -> None:
        sequence.started = True
        found = min(sequence.computed, sequence.prompt_length)
        fetched = self._tables.count_fetched(cached, found)
        schedule.scheduled.append(Scheduled(sequence.key, found, fetched))
        if sequence.cursor is not None:
            self._tally.hits += sequence.computed
            self._tally.fetched += self._tables.count_fetched(cached, sequence.computed)
            self._tally.misses += sequence.remaining
