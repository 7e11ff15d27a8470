"""A simulated runner that computes a step only when it is waited for, like a device that runs alongside the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace_engine.core.in_flight import InFlightStep
from headrace_engine.core.runner import BlockCopies, Sampled, SequenceStep
from headrace_engine.ipc.plans import CorePlan

from support.core.rig import Rig
from support.core.simulated import ContractBroken, SimulatedRunner

_GARBAGE = 999
"""Id computed instead of a token that was not sampled."""


class DelayedStep:
    """A launched step.

    Attributes:
        steps: as they were at its launch.
        finished: it was computed at its launch.
        outcome: once computed, the sampled ids or the error.
    """

    def __init__(self, steps: list[SequenceStep], compute: Callable[[DelayedStep], None]) -> None:
        self.steps = steps
        self.finished = False
        self.outcome: list[Sampled] | Exception | None = None
        self.waited = False
        self._compute = compute

    def wait(self) -> list[Sampled]:
        if self.waited:
            raise ContractBroken("a step was waited for twice")
        self.waited = True
        self._compute(self)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


class DelayedRunner(SimulatedRunner):
    """Keeps the order of calls, accepts at most one step while another is in progress, and returns no result early.

    Attributes:
        refuses: returns which rows make a step fail before it is launched.
        launches: number of steps launched since the start.
        overlapped: of these, those launched while another one was in progress.
        unknown: number of rows whose id the host did not know.
    """

    def __init__(self, plan: CorePlan) -> None:
        super().__init__(plan)
        self.refuses: Callable[[SequenceStep], bool] = lambda step: False
        self.launches = self.overlapped = self.unknown = 0
        self._queue: list[Callable[[], None]] = []
        self._last: DelayedStep | None = None
        self._launched: list[DelayedStep] = []

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        before, launched = self._last, DelayedStep([_kept(step) for step in steps], self._flush)
        if before is not None and any(step.sampled_at is not None for step in steps) and before.waited:
            raise ContractBroken("an id is taken from a step whose ids are known")
        self._check_step(steps)
        if any(self.refuses(step) for step in steps):
            raise RuntimeError("simulated refusal")
        self.launches += 1
        self.overlapped += before is not None and not before.waited
        self.unknown += sum(step.sampled_at is not None for step in steps)
        if self._under_way() > 1:
            raise ContractBroken("two steps are under way already")
        self._launched.append(launched)
        self._queue.append(lambda: self._compute(launched, before))
        self._last = launched
        return launched

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        if any(step.sampled_at is not None for step in steps):
            raise ContractBroken("a step that is run has an unknown id")
        self._flush()
        self._last = None
        return super().run(steps)

    def copy_blocks(self, copies: BlockCopies) -> None:
        kept = BlockCopies(tuple(copies.to_host), tuple(copies.to_pool), tuple(copies.within))
        self._queue.append(lambda: super(DelayedRunner, self).copy_blocks(kept))

    def _under_way(self) -> int:
        return sum(not launched.waited for launched in self._launched)

    def _flush(self, last: DelayedStep | None = None) -> None:
        """Run what was enqueued, in order, up to a step."""
        while self._queue and (last is None or last.outcome is None):
            self._queue.pop(0)()

    def _compute(self, launched: DelayedStep, before: DelayedStep | None) -> None:
        try:
            launched.outcome = super().run([_known(step, before) for step in launched.steps])
        except Exception as error:
            launched.outcome = error


class DelayedRig(Rig):
    """A core on a runner with late results."""

    make_runner = DelayedRunner
    runner: DelayedRunner

    def assert_idle(self) -> None:
        self.runner.refuses = lambda step: False
        super().assert_idle()


def _kept(step: SequenceStep) -> SequenceStep:
    """Copy a step as a device gets it: the state of its sequence may change afterwards."""
    return replace(step, token_ids=tuple(step.token_ids), blocks=tuple(step.blocks))


def _known(step: SequenceStep, before: DelayedStep | None) -> SequenceStep:
    """Return a step with the id that it takes from the one before."""
    if step.sampled_at is None:
        return step
    assert before is not None
    token_id = _drawn(before, step.sampled_at)
    return replace(step, token_ids=(_GARBAGE if token_id is None else token_id,), sampled_at=None)


def _drawn(launched: DelayedStep, place: int) -> int | None:
    if not isinstance(launched.outcome, list):
        return None
    drawn = iter(launched.outcome)
    answers = [next(drawn) if step.has_result else None for step in launched.steps]
    answer = answers[place]
    return None if answer is None else answer.token_id
