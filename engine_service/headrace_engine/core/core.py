"""The loop that turns commands into tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace_engine.commands import AddSequence, CoreCommand, CorePlan, EndSequence, Ping, Shutdown
from headrace_engine.core.guides.compiler import GuideMaker, Guides
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.kv.prefix_cache import Scope
from headrace_engine.core.link import Link
from headrace_engine.core.runner import Runner, Sampled
from headrace_engine.core.scheduling.pace import Pace
from headrace_engine.core.scheduling.schedule import Launched, Limits, Row, Schedule
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.steps.executor import Executor
from headrace_engine.core.steps.outcome import Outcome
from headrace_engine.guided.guide import Guide
from headrace_engine.messages import Pong, RunnerSizes, StepBegun
from headrace_engine.result_types import FinishReason


class Core:
    """The back half of one model: takes commands from a link, runs a runner that is ready, publishes what it draws.

    Args:
        plan: what the core was started with.
        sizes: what the runner made of it.
        open_guides: makes what compiles grammars for the model, when the first one comes.
        clock: seconds, for the time of a step and the age of cached blocks.
        pace: what is known of how long steps take; None: there is no target for them.
    """

    def __init__(
        self,
        plan: CorePlan,
        sizes: RunnerSizes,
        runner: Runner,
        link: Link,
        open_guides: Callable[[], GuideMaker],
        clock: Callable[[], float] = time.perf_counter,
        pace: Pace | None = None,
    ) -> None:
        scope = Scope(revision=plan.path, kv_mode=plan.kv_cache_mode)
        limits = Limits(plan.max_batch, plan.max_prefill_tokens, caching=plan.enable_prefix_cache)
        pool, host = BlockPool(sizes.num_blocks, plan.block_size), HostTier(sizes.num_host_blocks)
        self._pace = pace or Pace(block=plan.block_size)
        self._scheduler = Scheduler(pool, limits, scope, host, self._pace)
        self._executor = Executor(runner)
        self._link = link
        self._guides = Guides(open_guides)
        self._max_length = sizes.max_length
        self._clock = clock
        self._ttl = plan.prefix_cache_ttl
        self._outcome = Outcome(self._scheduler, link)
        self._under_way: Launched | None = None
        self._landed = 0.0
        self._begun: dict[int, None] = {}
        self._stopped = False

    @property
    def busy(self) -> bool:
        """The next step has something to do without a further command."""
        return self._computes or bool(self._guides)

    @property
    def _computes(self) -> bool:
        """The next step has something to do that nobody else has to do first."""
        return self._scheduler.busy or self._outcome.waits or self._under_way is not None

    def serve(self) -> None:
        """Step until told to shut down.

        Raises:
            LinkClosed: the front half is gone.
            StepFailed: the runner can compute nothing any more.
            IntegrityError: a defect of the scheduler.
        """
        try:
            while not self._stopped:
                self.step()
        finally:
            self._guides.close()
            if self._under_way is not None:
                self._executor.drop(self._under_way)

    def step(self) -> None:
        """Take commands, schedule, launch, publish. Waits for a command where there is nothing to do.

        Where a launched step is computed beside the host, it lands only when the next one was launched, so that the
        device has work while the host publishes and decides.
        """
        self._take_commands()
        if self._stopped:
            return
        if self._under_way is not None and not self._scheduler.can_look_ahead():
            self._land()
        launched = self._launch()
        self._land(launched)
        self._under_way = launched
        if launched.flight.landed:
            self._land()
        else:
            launched.expect()

    def check_integrity(self) -> None:
        """Compare the books of the KV pool with all block tables.

        Raises:
            IntegrityError: they differ.
        """
        self._scheduler.check_integrity()

    def _take_commands(self) -> None:
        if not self.busy:
            self._rest()
        commands = self._link.receive(block=not self.busy)
        while commands and isinstance(commands[-1], AddSequence) and commands[-1].more:
            commands += self._link.receive(block=True)
        for command in commands:
            self._obey(command)
        if self._guides:
            self._let_in()

    def _let_in(self) -> None:
        """Let sequences wait for their turn whose guides are made. With nothing to do, wait a moment for one."""
        for request, guide in self._guides.ready(block=not self._computes):
            if isinstance(guide, Exception):
                self._outcome.refuse(request.key, guide)
            else:
                self._enter(request, guide)

    def _rest(self) -> None:
        """Nothing to do: check the books, and do not leave gauges of a moment that has passed standing."""
        self._scheduler.check_integrity()
        self._outcome.publish(Schedule(0), 0.0)

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
        if request.grammar:
            self._guides.begin(request)
        else:
            self._enter(request)

    def _enter(self, request: AddSequence, guide: Guide | None = None) -> None:
        sequence = self._scheduler.add(request, guide)
        if error := _refusal(request, self._max_length):
            self._outcome.end(sequence, FinishReason.ERROR, error)
        elif reason := sequence.finish_reason:  # What an earlier core generated was all.
            self._outcome.end(sequence, reason)

    def _drop(self, key: int) -> None:
        self._guides.drop(key)
        sequence = self._scheduler.find(key)
        if sequence is not None:
            self._scheduler.end(sequence)

    def _launch(self) -> Launched:
        """Decide the next step, and give it to the runner."""
        started = self._clock()
        if self._ttl is not None:
            self._scheduler.age(started, self._ttl)
        schedule = self._scheduler.schedule()
        self._outcome.interrupt(schedule.interrupted)
        self._announce(schedule.rows)
        self._executor.copy(schedule.copies)
        steps = [row.step for row in schedule.rows]
        return Launched(schedule, steps, self._executor.launch(steps), started)

    def _announce(self, rows: list[Row]) -> None:
        """Tell who is being computed from here on, before it is, where that has changed."""
        if rows:
            flying = [] if self._under_way is None else self._under_way.living
            keys = dict.fromkeys(row.sequence.key for row in (*flying, *rows))
            if keys != self._begun:
                self._begun = keys
                self._link.send(StepBegun(list(keys)))

    def _land(self, ahead: Launched | None = None) -> None:
        """Wait for the step under way, if there is one; apply and publish what it brought.

        Args:
            ahead: the step that was launched after it.
        """
        step, self._under_way = self._under_way, None
        if step is None:
            return
        results = self._executor.land(step)
        failed = results is None
        if results is None:
            results = self._compute_apart(step, ahead)
        now = self._clock()
        seconds, self._landed = now - max(step.started, self._landed), now
        self._outcome.apply(step.schedule.rows, results)
        self._outcome.publish(step.schedule, seconds)
        if not failed:
            self._pace.note(len(step.steps) - len(step.schedule.prompts), step.schedule.prompts, seconds)

    def _compute_apart(self, step: Launched, ahead: Launched | None) -> list[Sampled | None]:
        """A step failed: compute each of its rows alone. What was launched after it built on it, and is nothing."""
        if ahead is not None:
            self._executor.drop(ahead)
            ahead.empty()
        step.schedule.rows = step.living
        for row in step.schedule.rows:
            row.sequence.call_back()
        return self._executor.run_apart([row.step for row in step.schedule.rows])


def _refusal(request: AddSequence, max_length: int) -> str:
    """Why a sequence cannot be computed, which the front half should have known; "" where it can."""
    if not request.prompt:
        return "the prompt is empty"
    length = len(request.prompt) + max(request.max_new, len(request.generated))
    if length > max_length:
        return f"prompt {len(request.prompt)} + generated make {length} tokens, max_length is {max_length}"
    return ""
