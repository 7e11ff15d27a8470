"""The loop that turns commands into tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace_engine.core.block_pool import BlockPool
from headrace_engine.core.entrance import Entrance
from headrace_engine.core.executor import Executor
from headrace_engine.core.guides import GuideMaker
from headrace_engine.core.host_tier import HostTier
from headrace_engine.core.link import Link
from headrace_engine.core.prefix_cache import Scope
from headrace_engine.core.runner import Runner, RunnerSizes, Sampled, Scores
from headrace_engine.core.schedule import Limits, Row, Schedule
from headrace_engine.core.scheduler import Scheduler
from headrace_engine.core.sequence import Sequence
from headrace_engine.core.step_output import prompt_piece, step_output
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.messages import (
    AddSequence,
    CoreCommand,
    CorePlan,
    CoreStat,
    Ended,
    EndSequence,
    Ping,
    Pong,
    PromptPiece,
    Shutdown,
    StepBegun,
)
from headrace_engine.result_types import FinishReason


class Core:
    """The back half of one model: takes commands from a link, runs a runner that is ready, publishes what it draws.

    Args:
        plan: what the core was started with.
        sizes: what the runner made of it.
        open_guides: makes what compiles grammars for the model, when the first one comes.
        clock: seconds, for the time of a step and the age of cached blocks.
    """

    def __init__(
        self,
        plan: CorePlan,
        sizes: RunnerSizes,
        runner: Runner,
        link: Link,
        open_guides: Callable[[], GuideMaker],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        scope = Scope(revision=plan.path, kv_mode=plan.kv_cache_mode)
        limits = Limits(plan.max_batch, plan.max_prefill_tokens, caching=plan.enable_prefix_cache)
        pool, host = BlockPool(sizes.num_blocks, plan.block_size), HostTier(sizes.num_host_blocks)
        self._scheduler = Scheduler(pool, limits, scope, host)
        self._executor = Executor(runner)
        self._link = link
        self._entrance = Entrance(open_guides, self._scheduler.find)
        self._clock = clock
        self._max_length = sizes.max_length
        self._ttl = plan.prefix_cache_ttl
        self._prompts: list[PromptPiece] = []  # Since the last output, as is the next.
        self._ended: list[Ended] = []
        self._published = CoreStat()
        self._begun: list[int] = []
        self._stopped = False

    @property
    def busy(self) -> bool:
        """The next step has something to do without a further command."""
        return self._scheduler.busy or bool(self._ended) or bool(self._entrance)

    def serve(self) -> None:
        """Step until told to shut down.

        Raises:
            LinkClosed: the front half is gone.
            StepFailed: the runner can compute nothing any more.
            BooksError: a defect of the scheduler.
        """
        try:
            while not self._stopped:
                self.step()
        finally:
            self._entrance.close()

    def step(self) -> None:
        """Take commands, schedule, run, publish. Waits for a command where there is nothing to do."""
        self._take_commands()
        if self._stopped:
            return
        started = self._clock()
        if self._ttl is not None:
            self._scheduler.age(started, self._ttl)
        schedule = self._scheduler.schedule()
        self._ended += [Ended(key, FinishReason.INTERRUPTED) for key in schedule.interrupted]
        self._announce(schedule.rows)
        self._executor.copy(schedule.copies)
        results = self._executor.run([row.step for row in schedule.rows])
        drawn = self._settle(schedule.rows, results)
        self._publish(schedule, drawn, self._clock() - started)

    def check_books(self) -> None:
        """Compare the books of the KV pool with all block tables.

        Raises:
            BooksError: they differ.
        """
        self._scheduler.check_books()

    def _take_commands(self) -> None:
        if not self.busy:
            self._rest()
        for command in self._link.receive(block=not self.busy):
            self._obey(command)
        if self._entrance:
            self._let_in()

    def _let_in(self) -> None:
        """Let sequences wait for their turn that wait for nothing else. With nothing to do, wait a moment for one."""
        for request, guide in self._entrance.ready(block=not (self._scheduler.busy or self._ended)):
            if isinstance(guide, Exception):
                self._ended.append(Ended(request.key, FinishReason.ERROR, str(guide)))
            else:
                self._enter(request, guide)

    def _rest(self) -> None:
        """Nothing to do: check the books, and do not leave gauges of a moment that has passed standing."""
        self._scheduler.check_books()
        if self._scheduler.stat != self._published:
            self._publish(Schedule(0), {}, 0.0)

    def _obey(self, command: CoreCommand) -> None:
        match command:
            case AddSequence():
                self._add(command)
            case EndSequence():
                self._drop(command.key)
            case Ping():
                self._link.send(Pong(command.number))
            case Shutdown():
                self._stopped = True
            case CorePlan():
                raise ValueError("a core takes one plan")

    def _add(self, request: AddSequence) -> None:
        if not self._entrance.hold(request):
            self._enter(request)

    def _enter(self, request: AddSequence, guide: Guide | None = None) -> None:
        sequence = self._scheduler.add(self._entrance.known(request), guide)
        if error := self._refusal(request):
            self._end(sequence, FinishReason.ERROR, error)
        elif reason := sequence.finish_reason:  # What an earlier core generated was all.
            self._end(sequence, reason)

    def _refusal(self, request: AddSequence) -> str:
        """Why a sequence cannot be computed, which the front half should have known; "" where it can."""
        if not request.prompt:
            return "the prompt is empty"
        length = len(request.prompt) + max(request.max_new, len(request.generated))
        if length > self._max_length:
            return f"prompt {len(request.prompt)} + generated make {length} tokens, max_length is {self._max_length}"
        return ""

    def _drop(self, key: int) -> None:
        self._entrance.drop(key)
        sequence = self._scheduler.find(key)
        if sequence is not None:
            self._scheduler.end(sequence)

    def _end(self, sequence: Sequence, reason: FinishReason, error: str = "") -> None:
        if error:
            self._scheduler.fail(sequence)
        else:
            self._scheduler.end(sequence)
        self._ended.append(Ended(sequence.key, reason, error))

    def _announce(self, rows: list[Row]) -> None:
        """Tell who is in the step before it is computed, where it is not the same as in the last one."""
        keys = [row.sequence.key for row in rows]
        if keys and keys != self._begun:
            self._begun = keys
            self._link.send(StepBegun(keys))

    def _settle(self, rows: list[Row], results: list[Sampled | None]) -> dict[int, Sampled]:
        """Book what a step brought, and return the tokens by key."""
        drawn: dict[int, Sampled] = {}
        for row, result in zip(rows, results, strict=True):
            if result is not None and result.error:
                self._end(row.sequence, FinishReason.ERROR, result.error)
                continue
            self._scheduler.advance(row)
            if result is not None and result.scores is not None:
                self._tell_scores(row.sequence, result.scores)
                if row.sequence.remaining:
                    continue
            if result is not None and self._take_token(row.sequence, result.token_id):
                drawn[row.sequence.key] = result
        return drawn

    def _take_token(self, sequence: Sequence, token_id: int | None) -> bool:
        """Append a token, and end the sequence where that is all; False where there was none to draw."""
        if token_id is None:
            self._end(sequence, FinishReason.NO_TOKEN_LEFT)
            return False
        self._scheduler.append(sequence, token_id)
        if reason := sequence.finish_reason:
            self._end(sequence, reason)
        elif sequence.guide is not None:
            self._guide(sequence, sequence.guide, token_id)
        return True

    def _tell_scores(self, sequence: Sequence, scores: Scores) -> None:
        self._prompts.append(prompt_piece(sequence.key, sequence.scored, scores))
        sequence.scored += len(scores.logprobs)
        if not sequence.scoring:
            self._entrance.note_scored(sequence.request.group)

    def _guide(self, sequence: Sequence, guide: Guide, token_id: int) -> None:
        try:
            guide.take([token_id])
        except GuideFailed as error:
            self._end(sequence, FinishReason.ERROR, str(error))

    def _publish(self, schedule: Schedule, drawn: dict[int, Sampled], seconds: float) -> None:
        """Tell the front half everything at once, if there is anything to tell."""
        stat = self._scheduler.stat
        if not (schedule.rows or self._ended or stat != self._published):
            return
        output = step_output(schedule, drawn, self._prompts, self._ended, stat, seconds)
        self._prompts, self._ended = [], []
        self._published = stat
        self._link.send(output)
