"""What the next step computes."""

from __future__ import annotations

from itertools import count

from headrace_engine.commands import AddSequence
from headrace_engine.core.kv.block_pool import BlockPool, IntegrityError
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.kv.prefix_cache import Scope
from headrace_engine.core.scheduling.groups import Groups
from headrace_engine.core.scheduling.pace import Allowance, Pace
from headrace_engine.core.scheduling.schedule import Limits, Row, Schedule
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.core.scheduling.sharing import Entrance, Sharing
from headrace_engine.core.scheduling.starter import Starter
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.core.scheduling.waiting import WaitingQueue
from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.guided.guide import Guide
from headrace_engine.stat_types import CoreStat, Counters, PoolStat


class Scheduler:
    """Decides whose tokens are computed next.

    There is no prefill or decode phase, only ids still to compute. A sequence gets blocks for all its ids when it
    starts, so a prompt cut in chunks never runs dry halfway; only generation asks for more, and then the sequence
    last in rank gives way. Sequences of one request go on from the prompt that they share in the same step.
    """

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        scope: Scope,
        host: HostTier | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace or Pace(block=pool.block_size)
        self._steps = 0
        self._pool = pool
        self._host = host or HostTier(0)
        self._tables = BlockTables(pool, self._host, scope, caching=limits.caching)
        self._limits = limits
        self._arrivals = count()
        self._sequences: dict[int, Sequence] = {}
        self._waiting = WaitingQueue(limits.patience)
        self._running: list[Sequence] = []  # In the order of rank.
        self._counters = Counters()
        self._starter = Starter(pool, self._tables, limits, self._waiting, self._running, self._counters)
        self._groups = Groups(pool.block_size)

    @property
    def busy(self) -> bool:
        """Something is left to compute."""
        return bool(self._sequences)

    @property
    def stat(self) -> CoreStat:
        """Gauges now, and counters since the start."""
        pool = PoolStat(
            blocks_total=self._pool.total,
            blocks_used=self._pool.used,
            blocks_cached=self._pool.cached,
            blocks_free=self._pool.free,
            host_blocks_total=self._host.total,
            host_blocks_used=self._host.used,
        )
        return CoreStat(len(self._running), len(self._waiting), pool, self._counters.copy())

    def add(self, request: AddSequence, guide: Guide | None = None) -> Sequence:
        """Let a sequence wait for its turn.

        Args:
            guide: where it stands in its grammar, if it has one.

        Raises:
            ValueError: its key is in use.
        """
        if request.key in self._sequences:
            raise ValueError(f"key {request.key} is in use")
        sequence = Sequence(request, next(self._arrivals), self._tables.cursor(request), guide)
        self._sequences[request.key] = sequence
        self._groups.join(sequence)
        self._waiting.push(sequence)
        return sequence

    def find(self, key: int) -> Sequence | None:
        """The sequence with this key, if it has not ended."""
        return self._sequences.get(key)

    def age(self, now: float, ttl: float) -> None:
        """It is now: drop cached blocks that nobody has used for ttl seconds."""
        self._pool.now = now
        self._tables.drop_before(now - ttl)

    def can_look_ahead(self) -> bool:
        """Whether the next step can be decided while one is under way.

        Not where it needs what that one draws, nor where somebody would have to give way: ends may leave room enough.
        """
        awaited = any(sequence.awaited for sequence in self._running)
        return not awaited and self._tables.can_extend_all(self._running)

    def schedule(self) -> Schedule:
        """The next step: generations first, then prompts, those under way and new ones, as `Sharing` shares it.

        While a step is under way, ask `can_look_ahead` first.

        Raises:
            IntegrityError: there is work and none of it can be done.
        """
        self._steps += 1
        schedule = Schedule(self._limits.max_tokens)
        for sequence in self._groups.take_restarts():
            self._put_back(sequence, schedule)
        self._generate(schedule)
        if schedule.budget and (self._waiting or len(schedule.rows) < len(self._running)):
            self._compute_prompts(schedule)
        schedule.copies = self._tables.take_copies()
        if self.busy and not (schedule.rows or any(sequence.under_way for sequence in self._running)):
            raise IntegrityError(f"{len(self._waiting)} sequences wait and none can start")
        return schedule

    def advance(self, row: Row) -> None:
        """A row was computed: its keys and values are in its blocks."""
        sequence = row.sequence
        if row.count > 1 or sequence.computed < sequence.prompt_length:
            self._counters.prefilled_tokens += row.count
        sequence.land(row.count)
        self._tables.publish(sequence)

    def append(self, sequence: Sequence, token_id: int) -> None:
        """A token was drawn."""
        sequence.ids.append(token_id)
        self._counters.generated_tokens += 1

    def end(self, sequence: Sequence) -> None:
        """Compute this sequence no more, wherever it stands."""
        if sequence.status is SequenceStatus.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        self._tables.close(sequence)
        self._groups.leave(sequence)
        sequence.status = SequenceStatus.ENDED
        del self._sequences[sequence.key]

    def fail(self, sequence: Sequence) -> None:
        """End a sequence whose computation went wrong: what its blocks hold is trusted no more."""
        self._tables.distrust(sequence)
        self.end(sequence)

    def check_integrity(self) -> None:
        """Compare the books of pool and cache with the block tables of all sequences.

        Raises:
            IntegrityError: they differ.
        """
        self._tables.check_integrity(self._sequences.values())

    def _generate(self, schedule: Schedule) -> None:
        """Rows of one token. They go by rank, so whoever gives way has no row yet, and more than one id to do."""
        for sequence in tuple(self._running):
            if sequence.remaining != 1 or sequence.pause is not None:
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
            self._put_back(sequence, schedule)

    def _put_back(self, sequence: Sequence, schedule: Schedule) -> None:
        """Put a running sequence back. Its ids stay, and are computed again when it has its turn."""
        self._running.remove(sequence)
        self._tables.close(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.preemptions += 1
        self._waiting.push(sequence)
        schedule.preempted.append(sequence.key)

    def _compute_prompts(self, schedule: Schedule) -> None:
        """Rows of prompts. Those of a group go on together, before others take of the budget."""
        most, generating = schedule.budget, len(schedule.rows)
        prompts = [sequence for sequence in self._running if sequence.remaining > 1 and sequence.due]
        alone = not generating and len(prompts) <= 1 and len(prompts) + self._waiting.free == 1
        allowance = self._pace.allow(most, generating, alone=alone)
        gone = self._go_together(schedule, allowance, most)
        if self._waiting:
            entrance = Entrance(allowance, [each for each in prompts if each not in gone])
            prompts += self._starter.start(self._waiting, schedule, allowance, self._steps, entrance)
            gone |= self._go_together(schedule, allowance, most)
        rivals = [each for each in prompts if each.due and each not in gone]
        for sequence, ids in Sharing(allowance, self._pool.block_size, self._steps).share(rivals).items():
            self._compute(sequence, ids, schedule)

    def _compute(self, sequence: Sequence, ids: int, schedule: Schedule) -> None:
        schedule.add_prompt(sequence, ids)
        sequence.advanced = self._steps

    def _go_together(self, schedule: Schedule, allowance: Allowance, most: int) -> set[Sequence]:
        """Let groups whose shared prompt was computed go on, each in one step while that is possible.

        Args:
            most: tokens that the budget has for others than generations: where even that is too little, it is cut.

        Returns:
            Those that were given a row.
        """
        gone: set[Sequence] = set()
        for group in self._groups.ready():
            if group.rest <= allowance.ids or allowance.ids == most:
                self._groups.open(group)
                followers = self._waiting.ahead(group.followers)
                begun = self._starter.start(followers, schedule, allowance, self._steps)
                for member in (group.leader, *begun):
                    if ids := min(member.due, allowance.ids):
                        allowance.take(member.position, ids)
                        self._compute(member, ids, schedule)
                gone.update(group.members)
        return gone
