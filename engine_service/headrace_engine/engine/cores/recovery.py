"""Recovery after the loss of a core: limits restarts, isolates suspects, and resumes sequences."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from weakref import WeakSet

from headrace_proto.pure.faults import is_fault

from headrace_engine.engine.cores.core_client import CoreClient
from headrace_engine.engine.cores.outputs import Outputs
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.errors import HeadraceError, Internal, NotFound, in_words
from headrace_engine.ipc.commands import AddSequence, EndSequence, in_common
from headrace_engine.model_types import CoreLoss
from headrace_engine.result_types import FinishReason

MAX_CRASHES = 5
"""Maximum number of crashes within CRASH_WINDOW; after one more the model fails."""

CRASH_WINDOW = 600.0
"""Seconds for which a crash counts."""

PROOF = 2
"""Tokens that clear a suspect: one of a step that recomputes its prompt, one of a decode step."""


class Recovery:
    """Replaces a lost core and resumes its sequences on the next one, suspects one by one.

    The sequences of the step that ended the core are suspects. Each suspect runs alone on the new core until it has
    made progress, and is preempted for the next one. So a sequence that crashes a core again does so alone, and ends
    with an error. The logs belong to the front half and outlive the core, so a sequence resumes where its log ends.

    Args:
        launch: starts a core with the same plan and waits until it is warm.
        changed: called when a core was lost, and when its successor is ready.
        given_up: called with the reason when no successor will be started.

    Attributes:
        loss: the lost core, while its successor is not ready; None: there is no loss.
    """

    def __init__(
        self,
        core: CoreClient,
        outputs: Outputs,
        clock: Clock,
        launch: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
        given_up: Callable[[HeadraceError], None],
    ) -> None:
        self._core = core
        self._outputs = outputs
        self._clock = clock
        self._launch = launch
        self._changed = changed
        self._given_up = given_up
        self._crashes: deque[float] = deque()
        self._suspects: list[Sequence] = []
        self._crashed: WeakSet[Sequence] = WeakSet()
        self._task: asyncio.Task[None] | None = None
        self.loss: CoreLoss | None = None

    def begin(self, error: HeadraceError) -> None:
        """Replace a core that was ready and is lost, unless that happens too often."""
        self._cancel()
        self._replace(error)

    def give_up(self) -> None:
        """Cancel the recovery: no core is needed any more."""
        self._cancel()
        self._suspects.clear()
        self.loss = None

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _replace(self, error: HeadraceError) -> None:
        try:
            self._note(error)
        except Internal as too_many:
            self._given_up(too_many)
            return
        self._changed()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._core.close()
            await self._launch()
            await self._resume_all()
        except BaseException as error:
            if not is_fault(error):
                raise
            self._task = None
            self._launch_failed(error)
        else:
            self._task = None
            self._changed()

    def _launch_failed(self, error: BaseException) -> None:
        """Handle a core that did not become ready: retry after a crash, give up after a reported error."""
        if isinstance(error, Internal):
            self._replace(error)
        elif isinstance(error, HeadraceError):
            self._given_up(error)
        else:
            text = f"the core cannot be started again: {in_words(error)}"
            self._given_up(Internal(text))

    def _note(self, error: HeadraceError) -> None:
        """Record a loss. From here on, no output of the lost core reaches a log.

        Raises:
            Internal: there were more than MAX_CRASHES.
        """
        now = self._clock()
        self.loss = CoreLoss(self._outputs.history.cores, error.message, now)
        for sequence in self._outputs.in_step():
            self._suspect(sequence, error)
        self._outputs.requeue(self._outputs.all())
        self._crashes.append(now)
        while self._crashes[0] <= now - CRASH_WINDOW:
            self._crashes.popleft()
        if len(self._crashes) > MAX_CRASHES:
            text = f"the core crashed {len(self._crashes)} times in {CRASH_WINDOW / 60:.0f} minutes"
            raise Internal(f"{text}; the last time: {error.message}")

    async def _resume_all(self) -> None:
        """Resume all live sequences on the new core, suspects first; then the loss is over."""
        last: list[Sequence] = []
        while self._suspects:
            self._preempt(last)
            last = self._together(self._suspects[0])
            await self._try(last)
            self._suspects = [sequence for sequence in self._suspects if sequence not in last]
        rest = [sequence for sequence in self._outputs.all() if sequence not in last]
        for _, group in groupby(rest, key=self._group):
            self._resume(*group)
        self.loss = None

    def _suspect(self, sequence: Sequence, error: HeadraceError) -> None:
        if sequence in self._crashed:
            text = f"the request was running when the core crashed twice; the last time: {error.message}"
            self._outputs.finish(sequence, FinishReason.ERROR, text)
            return
        self._crashed.add(sequence)
        self._suspects.append(sequence)

    def _together(self, sequence: Sequence) -> list[Sequence]:
        """Return the sequences to try with a suspect: itself, and those that the same beam search has texts for."""
        command = self._outputs.find_command(sequence)
        if command is None or command.beams is None:
            return [sequence]
        return [each for each in self._outputs.all() if self._group(each) == self._group(sequence)]

    async def _try(self, sequences: list[Sequence]) -> None:
        """Run a sequence, or a beam search, alone until it has made progress or ended."""
        first = sequences[0]
        if first.log.end is not None:
            return
        searches = self._outputs.command(first).beams is not None
        first.log.searched = 0
        self._resume(*sequences)
        with suppress(NotFound):  # It was released.
            if searches and not len(first.log):
                await first.log.wait_searched(PROOF)
            else:
                await first.log.wait(len(first.log) + PROOF - 1)

    def _preempt(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.log.end is None:
                self._core.send(EndSequence(sequence.key))
                self._outputs.requeue([sequence])

    def _group(self, sequence: Sequence) -> int:
        return self._outputs.command(sequence).group or sequence.key

    def _resume(self, *group: Sequence) -> None:
        """Have the core continue sequences of one request where their logs end."""
        for message in in_common([self._continued(sequence) for sequence in group]):
            self._core.send(message)

    def _continued(self, sequence: Sequence) -> AddSequence:
        command = self._outputs.command(sequence)
        generated = (*command.generated, *sequence.log.ids)
        log = sequence.prompt or sequence.states
        reported = 0 if log is None else log.position
        return replace(command, key=sequence.key, generated=generated, prompt_reported=reported)
