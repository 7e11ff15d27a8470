"""The step loop of a core.

A sequence changes owner on its way. A command hands it from the front half to the core: to `Guides` while its grammar
compiles, then to the scheduler, which alone owns its blocks until the sequence ends. A launched step only borrows the
rows: a sequence may end while its row is computed, and the result of that row is dropped. `Outcome` reports every
end to the front half once, and after it nothing of the sequence is left here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace_engine.block_keys import Scope
from headrace_engine.core.adapters import AdapterReads
from headrace_engine.core.guides.compiler import GuideMaker, Guides
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.link import Link
from headrace_engine.core.runner import Runner, Sampled
from headrace_engine.core.scheduling.draft_model import DraftModel
from headrace_engine.core.scheduling.drafters import Drafter, drafter_for
from headrace_engine.core.scheduling.drafting import Drafting
from headrace_engine.core.scheduling.model_guesses import ModelGuesses
from headrace_engine.core.scheduling.pace import Pace
from headrace_engine.core.scheduling.schedule import LaunchedStep, Limits, Schedule
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.core.steps.executor import Executor
from headrace_engine.core.steps.outcome import Outcome
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.commands import AddSequence, AddSibling, CoreCommand, EndSequence, LoadAdapter, Ping, Shutdown
from headrace_engine.ipc.messages import AdapterLoaded, Pong, RunnerSizes
from headrace_engine.ipc.plans import MOST_ROWS, CorePlan, DraftPlan
from headrace_engine.result_types import FinishReason


class Core:
    """The core of one model: receives commands from a link, runs steps on a warm runner, publishes the results.

    Args:
        plan: the plan that the core was started with.
        sizes: the sizes that the runner chose for it.
        open_guides: returns the compiler of grammars; called for the first one.
        clock: seconds, for step times and the age of cached blocks.
        pace: estimates how long steps take; None: step time has no target.
        drafter: source of drafted ids; None: as in the plan.
        costs: the time of steps with drafted ids, as measured at the start; None: unknown.
        draft_costs: the time of the draft model's steps, likewise.
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
        drafter: Drafter | None = None,
        costs: RowCosts | None = None,
        draft_costs: RowCosts | None = None,
    ) -> None:
        scope = Scope.of(plan)
        limits = Limits(plan.max_batch, plan.max_prefill_tokens, caching=plan.enable_prefix_cache)
        pool, host = BlockPool(sizes.num_blocks, plan.block_size), HostTier(sizes.num_host_blocks)
        self._pace = pace or Pace(block=plan.block_size)
        self._costs = costs or RowCosts()
        model = None if plan.draft is None else _draft_model(plan.draft, plan, sizes, runner, draft_costs, clock)
        drafting = _drafting(plan, drafter, self._costs, model, clock)
        self._scheduler = Scheduler(pool, limits, scope, host, self._pace, drafting)
        self._executor = Executor(runner)
        self._link = link
        self._guides = Guides(open_guides)
        self._adapters = AdapterReads(runner)
        self._max_length, self._most = sizes.max_length, limits.most
        self._clock = clock
        self._ttl = plan.prefix_cache_ttl
        self._outcome = Outcome(self._scheduler, link)
        self._in_flight: LaunchedStep | None = None
        self._finished_at = 0.0
        self._group: list[AddSequence] = []
        self._stopped = False

    @property
    def busy(self) -> bool:
        """True if the next step has something to do without a further command."""
        return self._has_work or bool(self._guides) or bool(self._adapters)

    @property
    def _has_work(self) -> bool:
        """True if the next step has something to do without waiting for a guide or an adapter."""
        return self._scheduler.busy or self._outcome.pending or self._in_flight is not None

    def serve(self) -> None:
        """Step until a Shutdown arrives.

        Raises:
            LinkClosed: the front half is gone.
            StepFailed: the runner cannot compute anything any more.
            IntegrityError: a defect of the scheduler.
        """
        try:
            while not self._stopped:
                self.step()
        finally:
            self._guides.close()
            if self._in_flight is not None:
                self._executor.drop(self._in_flight)

    def step(self) -> None:
        """Receive commands, schedule, launch, publish. Blocks for a command when idle.

        If the runner computes concurrently with the host, a step's results are awaited only after the next step was
        launched, so that the device is busy while the host schedules and publishes.
        """
        self._take_commands()
        if self._stopped:
            return
        if self._in_flight is not None and not self._scheduler.can_schedule_ahead():
            self._finish()
        launched = self._launch()
        self._finish(launched)
        self._in_flight = launched
        if launched.handle.finished:
            self._finish()
        else:
            launched.note_launch()

    def check_integrity(self) -> None:
        """Check the KV pool against all block tables.

        Raises:
            IntegrityError: they are inconsistent.
        """
        self._scheduler.check_integrity()

    def _take_commands(self) -> None:
        if not self.busy:
            self._idle()
        commands = self._link.receive(block=not self.busy)
        while commands and isinstance(commands[-1], AddSequence | AddSibling) and commands[-1].more:
            commands += self._link.receive(block=True)
        for command in commands:
            self._handle(command)
        if self._guides:
            self._enqueue_guided()
        if self._adapters:
            self._load_adapters()

    def _enqueue_guided(self) -> None:
        """Queue sequences whose grammar has compiled; block briefly for one when idle."""
        for request, guide in self._guides.ready(block=not self._has_work):
            if isinstance(guide, Exception):
                self._outcome.refuse(request, guide)
            else:
                self._enqueue(request, guide)

    def _idle(self) -> None:
        """Check integrity, and publish the current gauges."""
        self._scheduler.check_integrity()
        self._outcome.publish(Schedule(0), 0.0)

    def _handle(self, command: CoreCommand) -> None:
        match command:
            case AddSequence() | AddSibling():
                self._add(command)
            case EndSequence():
                self._drop(command.key)
            case LoadAdapter(adapter):
                self._adapters.begin(adapter)
            case Ping():
                self._link.send(Pong(command.number))
            case Shutdown():
                self._stopped = True
            case CorePlan():
                raise ValueError("a core takes one plan")

    def _load_adapters(self) -> None:
        """Load the adapters that were read, between two steps: rows of ended sequences may still read their memory."""
        for number, load in self._adapters.ready(block=not self._has_work):
            self._finish()
            self._link.send(AdapterLoaded(number, load()))

    def _add(self, command: AddSequence | AddSibling) -> None:
        request = command if isinstance(command, AddSequence) else command.whole(self._group.pop())
        if command.more:
            self._group.append(request)
        if request.grammar:
            self._guides.begin(request)
        else:
            self._enqueue(request)

    def _enqueue(self, request: AddSequence, guide: Guide | None = None) -> None:
        sequence = self._scheduler.add(request, guide)
        if error := _refusal(request, self._max_length, self._most):
            self._outcome.end(sequence, FinishReason.ERROR, error)
        elif reason := sequence.finish_reason:  # An earlier core generated all of it.
            self._outcome.end(sequence, reason)

    def _drop(self, key: int) -> None:
        self._guides.drop(key)
        self._outcome.drop(key)
        sequence = self._scheduler.find(key)
        if sequence is None:
            return
        if sequence.search is None or sequence.search.drop(key):
            self._scheduler.end(sequence)

    def _launch(self) -> LaunchedStep:
        """Schedule the next step, and launch it on the runner."""
        started = self._clock()
        if self._ttl is not None:
            self._scheduler.expire_cached(started, self._ttl)
        schedule = self._scheduler.schedule()
        self._outcome.report_interrupted(schedule.interrupted)
        self._outcome.report_begun(schedule.rows, self._in_flight)
        self._executor.copy(schedule.copies)
        steps = schedule.steps()
        return LaunchedStep(schedule, steps, self._executor.launch(steps), started)

    def _finish(self, ahead: LaunchedStep | None = None) -> None:
        """Wait for the in-flight step, if there is one, apply its results and publish them.

        Args:
            ahead: the step launched after it, if any.
        """
        step, self._in_flight = self._in_flight, None
        if step is None:
            return
        results = self._executor.wait(step)
        failed = results is None
        if results is None:
            results = self._run_separately(step, ahead)
        now = self._clock()
        seconds, self._finished_at = now - max(step.started, self._finished_at), now
        self._outcome.apply(step.schedule.rows, results)
        self._outcome.publish(step.schedule, seconds)
        if not failed:
            self._pace.note(step.generating, step.schedule.prompts, seconds)
            if not step.schedule.prompts:
                drafted = step.generating > len(step.schedule.rows)
                self._costs.note(step.generating, seconds - step.schedule.drafting, drafted=drafted)

    def _run_separately(self, step: LaunchedStep, ahead: LaunchedStep | None) -> list[Sampled | None]:
        """Compute each row of a failed step alone; drop the step launched after it, which depends on its results."""
        if ahead is not None:
            self._executor.drop(ahead)
            ahead.discard()
        step.schedule.rows = step.live_rows
        for row in step.schedule.rows:
            row.sequence.clear_in_flight()
        return self._executor.run_separately(step.schedule.steps())


def _refusal(request: AddSequence, max_length: int, most: int) -> str:
    """Return why a sequence cannot be computed, or "". The front half should have refused it."""
    if not request.prompt:
        return "the prompt is empty"
    if request.beams is not None and request.beams.num_beams > most:
        return f"{request.beams.num_beams} beams; {most} sequences are computed at once"
    length = len(request.prompt) + max(request.max_new, len(request.generated))
    if length > max_length:
        return f"prompt of {len(request.prompt)} + generated are {length} tokens; max_length is {max_length}"
    return ""


def _drafting(
    plan: CorePlan, drafter: Drafter | None, costs: RowCosts, model: DraftModel | None, clock: Callable[[], float]
) -> Drafting | None:
    """Return what drafts ids; None: nothing does."""
    drafter = drafter or drafter_for(plan.speculation)
    if drafter is None:
        return None
    guesses = None if model is None else ModelGuesses(model, plan.max_drafts, costs, clock)
    return Drafting(drafter, plan.max_drafts, MOST_ROWS, costs, guesses, clock)


def _draft_model(
    draft: DraftPlan,
    plan: CorePlan,
    sizes: RunnerSizes,
    runner: Runner,
    costs: RowCosts | None,
    clock: Callable[[], float],
) -> DraftModel:
    length = min(draft.max_length, sizes.max_length)
    return DraftModel(runner.draft, plan.block_size, length, costs or RowCosts(), clock)
