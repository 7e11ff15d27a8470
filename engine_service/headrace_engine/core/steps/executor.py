"""Runs steps on a runner, and finds the rows at fault when one fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from headrace_proto.pure.faults import is_fault
from headrace_proto.pure.log_budget import LogBudget

from headrace_engine.core.in_flight import FailedLaunch, FinishedStep, InFlightStep
from headrace_engine.core.runner import BlockCopies, Runner, Sampled, SequenceStep
from headrace_engine.core.scheduling.schedule import LaunchedStep
from headrace_engine.errors import in_words
from headrace_engine.sampling_params import SamplingParams

_log = logging.getLogger(__name__)


class StepFailed(Exception):
    """The runner cannot compute anything any more; the cause is the exception that it raised."""


class Executor:
    """Runs steps on a runner. An exception ends only the sequences that also raise it when run alone."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lines = LogBudget()

    def copy(self, copies: BlockCopies) -> None:
        """Copy blocks before the step that overwrites or reads them.

        Raises:
            StepFailed: the copy failed, which leaves the contents of the blocks unknown.
        """
        if not copies:
            return
        try:
            self._runner.copy_blocks(copies)
        except BaseException as error:
            if not is_fault(error):
                raise
            raise StepFailed(f"copying blocks: {in_words(error)}") from error

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        """Launch a step. Failures are raised by its handle, and reported by `wait`."""
        if not steps:
            return FinishedStep([])
        try:
            return self._runner.launch(steps)
        except BaseException as error:
            if not is_fault(error):
                raise
            return FailedLaunch(error)

    def wait(self, step: LaunchedStep) -> list[Sampled | None] | None:
        """Wait for a step; return a result per row, None for rows without one. None: the whole step failed."""
        try:
            return _results_by_row(step.handle.wait(), step.steps)
        except BaseException as error:
            if not is_fault(error):
                raise
            if (omitted := self._lines.spend("step_failed")) is not None:
                _log.exception("step_failed: retrying %d rows one by one, omitted: %d", len(step.steps), omitted)
            return None

    def drop(self, step: LaunchedStep) -> None:
        """Wait for a step and drop its results."""
        with suppress(Exception):
            step.handle.wait()

    def run_separately(self, steps: Sequence[SequenceStep]) -> list[Sampled | None]:
        """Run each row alone, once. Rows can be repeated: they write and sample the same again.

        Returns:
            One result per row; None if it returns nothing and succeeded.

        Raises:
            StepFailed: every row fails, and so does a harmless one.
        """
        results: list[Sampled | None] = []
        failed: list[tuple[SequenceStep, BaseException]] = []
        for step in steps:
            try:
                results += self._run([step])
            except BaseException as error:
                if not is_fault(error):
                    raise
                results.append(Sampled(None, error=f"the step failed: {in_words(error)}"))
                failed.append((step, error))
        if failed and len(failed) == len(steps):
            self._probe(*failed[-1])
        return results

    def _run(self, steps: Sequence[SequenceStep]) -> list[Sampled | None]:
        return _results_by_row(self._runner.run(steps), steps)

    def _probe(self, step: SequenceStep, error: BaseException) -> None:
        """Distinguish failing sequences from a failing device after every row failed, by running a harmless row.

        The harmless row writes to the last block of a failed row, which is private to that row's sequence.

        Raises:
            StepFailed: the device fails with harmless input too.
        """
        # Its sequence has failed, so what the block holds is not needed any more.
        harmless = SequenceStep(
            token_ids=(0,), start=0, blocks=(step.blocks[-1],), sampling=SamplingParams(temperature=0)
        )
        try:
            self._run([harmless])
        except BaseException as other:
            if not is_fault(other):
                raise
            raise StepFailed(in_words(error)) from error


def _results_by_row(sampled: list[Sampled], steps: Sequence[SequenceStep]) -> list[Sampled | None]:
    """Spread the runner's results, which exist only for rows that return one, over all rows."""
    expected = [step.has_result for step in steps]
    if len(sampled) != sum(expected):
        raise RuntimeError(f"the runner returned {len(sampled)} results where {sum(expected)} were expected")
    remaining = iter(sampled)
    return [next(remaining) if want else None for want in expected]
