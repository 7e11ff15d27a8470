"""The scheduler of a core."""

from __future__ import annotations

from headrace_engine.block_keys import Scope
from headrace_engine.characters.stop_words import WordReader
from headrace_engine.core.kv.block_pool import BlockPool, IntegrityError
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.scheduling.beam_search import BeamSearch
from headrace_engine.core.scheduling.drafts.drafting import Drafting
from headrace_engine.core.scheduling.live import LiveSequences
from headrace_engine.core.scheduling.pace import Allowance, Pace
from headrace_engine.core.scheduling.schedule import Limits, Schedule
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.scheduling.sharing import Entrance, Sharing
from headrace_engine.core.scheduling.starter import Starter
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.step_output import CacheChange
from headrace_engine.stat_types import CoreStat, Counters, PoolStat


class Scheduler:
    """Decides which tokens the next step computes.

    There is no prefill or decode phase, only ids still to compute. A sequence gets blocks for all its ids when it
    starts, so a chunked prompt never runs out of blocks halfway; only decoding needs more, and then the sequence
    last in precedence is preempted. Sequences of one request continue from their shared prompt in the same step.
    """

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        scope: Scope,
        host: HostTier | None = None,
        pace: Pace | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        self._drafting = drafting
        self._pace = pace or Pace(block=pool.block_size)
        self._steps = 0
        self._pool = pool
        self._host = host or HostTier(0)
        self._tables = BlockTables(pool, self._host, scope, caching=limits.caching)
        self._limits = limits
        self._live = LiveSequences(pool, self._tables, limits.patience)
        self._counters = Counters()
        self._starter = Starter(pool, self._tables, limits, self._live, self._counters)

    @property
    def busy(self) -> bool:
        """True if any sequence is left to compute."""
        return bool(self._live)

    @property
    def stat(self) -> CoreStat:
        """Current gauges, and counters since the start."""
        pool = PoolStat(
            blocks_total=self._pool.total,
            blocks_used=self._pool.used,
            blocks_cached=self._pool.cached,
            blocks_free=self._pool.free,
            host_blocks_total=self._host.total,
            host_blocks_used=self._host.used,
        )
        return CoreStat(len(self._live.running), len(self._live.waiting), pool, self._counters.copy())

    def add(self, request: AddSequence, guide: Guide | None = None, words: WordReader | None = None) -> Sequence:
        """Queue a sequence, which the scheduler owns until it ends.

        Args:
            guide: follows its grammar, if it has one.
            words: finds the stop words of a beam search, if it has some.

        Raises:
            ValueError: its key is in use.
        """
        return self._live.add(request, guide, words)

    def find(self, key: int) -> Sequence | None:
        """Return the sequence with this key, if it has not ended; of a beam search, the first of its sequences."""
        return self._live.find(key)

    def expire_cached(self, now: float, ttl: float) -> None:
        """Set the time, and drop cached blocks that were unused for `ttl` seconds."""
        self._pool.now = now
        self._tables.drop_before(now - ttl)

    def take_cache_changes(self) -> list[CacheChange]:
        """Return what came into the prefix cache, and left it, since the last call."""
        return self._tables.take_changes()

    def can_schedule_ahead(self) -> bool:
        """Return True if the next step can be scheduled while one is in flight.

        It cannot if it depends on the tokens being sampled, as drafts do, or would preempt: sequences about to end may
        free blocks.
        """
        needs_results = self._drafting is not None or any(sequence.needs_results for sequence in self._live.running)
        return not (needs_results or self._live.searches.due()) and self._tables.can_extend_all(self._live.running)

    def schedule(self) -> Schedule:
        """Return the next step: decoding sequences first, then running and new prompts, divided by `Sharing`.

        While a step is in flight, check `can_schedule_ahead` first.

        Raises:
            IntegrityError: there is work, but none of it can be scheduled.
        """
        self._steps += 1
        schedule = Schedule(self._limits.max_tokens)
        for sequence in self._live.groups.take_restarts():
            self._live.preempt(sequence, schedule)
        for search in self._live.searches.due():
            if self._live.searches.is_due(search):  # One before it may have taken its blocks.
                self._live.branch(search, schedule)
        self._generate(schedule)
        if schedule.budget and (self._live.waiting or len(schedule.rows) < len(self._live.running)):
            self._compute_prompts(schedule)
        if self._drafting is not None and not schedule.prompts:
            self._drafting.add_drafts(schedule, self._tables, len(self._live.running))
        # Last: whatever gave a block to a new owner above may need its old contents copied first.
        schedule.copies = self._tables.take_copies()
        if self.busy and not (schedule.rows or any(sequence.in_flight for sequence in self._live.running)):
            raise IntegrityError(f"{len(self._live.waiting)} sequences are waiting and none can start")
        return schedule

    def advance(self, sequence: Sequence, count: int) -> None:
        """Record that its next `count` ids were computed: their keys and values are in its blocks, to be shared."""
        if count > 1 or sequence.computed < sequence.prompt_length:
            self._counters.prefilled_tokens += count
        sequence.note_computed(count)
        self._tables.publish(sequence)

    def append(self, sequence: Sequence, token_id: int) -> None:
        """Append a sampled token."""
        sequence.ids.append(token_id)
        self._counters.generated_tokens += 1

    def count_beams(self, search: BeamSearch) -> None:
        """Count the tokens that a step added to the beams of a search."""
        self._counters.generated_tokens += len(search.beams)

    def count_drafts(self, drafted: int, accepted: int) -> None:
        """Count drafted ids, and those that held."""
        self._counters.drafted_tokens += drafted
        self._counters.accepted_tokens += accepted

    def end(self, sequence: Sequence) -> None:
        """End a sequence, waiting or running, and release its blocks; one of a beam search, with the whole search."""
        self._live.end(sequence)

    def fail(self, sequence: Sequence) -> None:
        """End a sequence whose computation failed, and remove the contents of its blocks from the prefix cache."""
        # Before they return to the pool, which must not keep what a failed step left in them.
        for each in (sequence,) if sequence.search is None else sequence.search.members:
            self._tables.invalidate(each)
        self.end(sequence)

    def check_integrity(self) -> None:
        """Check the pool and the prefix cache against the block tables of all sequences.

        Raises:
            IntegrityError: they are inconsistent.
        """
        self._tables.check_integrity(self._live.all())

    def _generate(self, schedule: Schedule) -> None:
        """Add the decode rows, by precedence, so that a sequence is preempted before it gets a row."""
        for sequence in tuple(self._live.running):
            if sequence.remaining != 1 or sequence.pause is not None:
                continue
            if self._tables.has_blocks(sequence) or self._live.ensure_block(sequence, schedule):
                schedule.add(sequence)

    def _compute_prompts(self, schedule: Schedule) -> None:
        """Add the prefill rows. Groups go first, so that their members stay in one step."""
        most, generating = schedule.budget, len(schedule.rows)
        prompts = [sequence for sequence in self._live.running if sequence.remaining > 1 and sequence.due]
        alone = not generating and len(prompts) <= 1 and len(prompts) + self._live.waiting.free == 1
        allowance = self._pace.allow(most, generating, alone=alone)
        advanced = self._advance_groups(schedule, allowance, most)
        if self._live.waiting:
            entrance = Entrance(allowance, [each for each in prompts if each not in advanced])
            prompts += self._starter.start(self._live.waiting, schedule, allowance, self._steps, entrance)
            advanced |= self._advance_groups(schedule, allowance, most)
        rest = [each for each in prompts if each.due and each not in advanced]
        for sequence, ids in Sharing(allowance, self._pool.block_size, self._steps).share(rest).items():
            self._compute(sequence, ids, schedule)

    def _compute(self, sequence: Sequence, ids: int, schedule: Schedule) -> None:
        schedule.add_prompt(sequence, ids)
        sequence.advanced = self._steps

    def _advance_groups(self, schedule: Schedule, allowance: Allowance, most: int) -> set[Sequence]:
        """Open the groups whose shared prompt was computed, each within one step if the budget allows.

        Args:
            most: the step's budget for prefill: a group that exceeds even that is split.

        Returns:
            The members of the opened groups.
        """
        advanced: set[Sequence] = set()
        for group in self._live.groups.ready():
            if group.rest <= allowance.ids or allowance.ids == most:
                self._live.groups.open(group)
                followers = self._live.waiting.ahead(group.followers)
                started = self._starter.start(followers, schedule, allowance, self._steps)
                for member in (group.leader, *started):
                    if ids := min(member.due, allowance.ids):
                        allowance.take(member.position, ids)
                        self._compute(member, ids, schedule)
                advanced.update(group.members)
        return advanced
