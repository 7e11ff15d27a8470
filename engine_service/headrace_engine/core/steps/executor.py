"""Runs the rows of a step, and finds out whose fault it is when that fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from headrace_proto.pure.faults import is_fault

from headrace_engine.core.flight import Crashed, Flight, Landed
from headrace_engine.core.runner import BlockCopies, Runner, Sampled, SequenceStep
from headrace_engine.core.scheduling.schedule import Launched
from headrace_engine.errors import in_words
from headrace_engine.sampling_params import SamplingParams

_log = logging.getLogger(__name__)


class StepFailed(Exception):
    """The runner can compute nothing any more; the cause is the exception that it raised."""


class Executor:
    """Runs steps on a runner. A runner's exception costs those sequences that raise it alone too, and no other."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def copy(self, copies: BlockCopies) -> None:
        """Copy blocks before the step that overwrites or reads them.

        Raises:
            StepFailed: they could not be copied, whoever asked for it: nobody knows now what the blocks hold.
        """
        if not copies:
            return
        try:
            self._runner.copy_blocks(copies)
        except BaseException as error:
            if not is_fault(error):
                raise
            raise StepFailed(f"copying blocks: {in_words(error)}") from error

    def launch(self, steps: Sequence[SequenceStep]) -> Flight:
        """Begin a step. What goes wrong in it is told by `land`."""
        if not steps:
            return Landed([])
        try:
            return self._runner.launch(steps)
        except BaseException as error:
            if not is_fault(error):
                raise
            return Crashed(error)

    def land(self, step: Launched) -> list[Sampled | None] | None:
        """One result a step, in order; None where nothing was wanted. None in the place of all: the step has failed."""
        try:
            return _answers(step.flight.wait(), step.steps)
        except BaseException as error:
            if not is_fault(error):
                raise
            _log.exception("step_failed: %d rows are tried one by one", len(step.steps))
            return None

    def drop(self, step: Launched) -> None:
        """Wait for a step whose results are of no use."""
        with suppress(Exception):
            step.flight.wait()

    def run_apart(self, steps: Sequence[SequenceStep]) -> list[Sampled | None]:
        """Each step alone, once: it may be repeated, since it writes and draws the same again.

        Returns:
            One result a step, in order; None where nothing was wanted and nothing went wrong.

        Raises:
            StepFailed: not even a step of one known token can be computed.
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
        return _answers(self._runner.run(steps), steps)

    def _probe(self, step: SequenceStep, error: BaseException) -> None:
        """Tell failing sequences from a failing device, where every row failed.

        The last block of a row is its own and not full before the step, so the row that failed can lend it.

        Raises:
            StepFailed: the device fails with harmless input too.
        """
        harmless = SequenceStep(
            token_ids=(0,), start=0, blocks=(step.blocks[-1],), sampling=SamplingParams(temperature=0)
        )
        try:
            self._run([harmless])
        except BaseException as other:
            if not is_fault(other):
                raise
            raise StepFailed(in_words(error)) from error


def _answers(drawn: list[Sampled], steps: Sequence[SequenceStep]) -> list[Sampled | None]:
    """One result a step, where a runner tells of those alone that want one."""
    wanted = [step.answered for step in steps]
    if len(drawn) != sum(wanted):
        raise RuntimeError(f"the runner told of {len(drawn)} rows where {sum(wanted)} were wanted")
    remaining = iter(drawn)
    return [next(remaining) if want else None for want in wanted]
