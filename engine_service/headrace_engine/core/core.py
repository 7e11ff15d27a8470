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
from headrace_engine.core.intake import Intake
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.link import Link
from headrace_engine.core.runner import Runner, Sampled
from headrace_engine.core.scheduling.drafts.drafters import Drafter
from headrace_engine.core.scheduling.drafts.opening import open_drafting
from headrace_engine.core.scheduling.pace import Pace
from headrace_engine.core.scheduling.schedule import LaunchedStep, Limits
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.core.steps.executor import Executor
from headrace_engine.core.steps.outcome import Outcome
from headrace_engine.ipc.messages import RunnerSizes
from headrace_engine.ipc.plans import CorePlan


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
        drafting = open_drafting(plan, sizes, runner, self._costs, draft_costs, clock, drafter)
        self._scheduler = Scheduler(pool, limits, scope, host, self._pace, drafting)
        self._executor = Executor(runner)
        self._outcome = Outcome(self._scheduler, link)
        prepared = Guides(open_guides), AdapterReads(runner)
        self._intake = Intake(link, self._scheduler, self._outcome, *prepared, sizes.max_length, limits.most)
        self._clock = clock
        self._ttl = plan.prefix_cache_ttl
        self._in_flight: LaunchedStep | None = None
        self._finished_at = 0.0

    @property
    def busy(self) -> bool:
        """True if the next step has something to do without a further command."""
        return self._has_work() or self._intake.pending

    def _has_work(self) -> bool:
        """Return True if the next step has something to do without waiting for a guide or an adapter."""
        return self._scheduler.busy or self._outcome.pending or self._in_flight is not None

    def serve(self) -> None:
        """Step until a Shutdown arrives.

        Raises:
            LinkClosed: the front half is gone.
            StepFailed: the runner cannot compute anything any more.
            IntegrityError: a defect of the scheduler.
        """
        try:
            while not self._intake.stopped:
                self.step()
        finally:
            self._intake.close()
            # The pool and the weights are freed after this: nothing may compute on them any more.
            if self._in_flight is not None:
                self._executor.drop(self._in_flight)

    def step(self) -> None:
        """Receive commands, schedule, launch, publish. Blocks for a command when idle.

        If the runner computes concurrently with the host, a step's results are awaited only after the next step was
        launched, so that the device is busy while the host schedules and publishes.
        """
        self._intake.take(has_work=self._has_work, finish_step=self._finish)
        if self._intake.stopped:
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

    def _launch(self) -> LaunchedStep:
        """Schedule the next step, and launch it on the runner."""
        started = self._clock()
        if self._ttl is not None:
            self._scheduler.expire_cached(started, self._ttl)
        schedule = self._scheduler.schedule()
        self._outcome.report_interrupted(schedule.interrupted)
        self._outcome.report_begun(schedule.rows, self._in_flight)
        # Blocks have their new owners since `schedule`, and still their old contents: copies come before the rows.
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
            # Only its results are dropped: sequences keep the blocks that they were given, and its copies are done.
            ahead.discard()
        step.schedule.rows = step.live_rows
        for row in step.schedule.rows:
            row.sequence.clear_in_flight()
        return self._executor.run_separately(step.schedule.steps())
