"""After the loss of a core: how often that may be, who may have caused it, and who goes to the next core when."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from weakref import WeakSet

from headrace_proto.pure.faults import is_fault

from headrace_engine.commands import EndSequence
from headrace_engine.engine.models.core_client import CoreClient
from headrace_engine.engine.models.outputs import Outputs
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.errors import HeadraceError, Internal, NotFound, in_words
from headrace_engine.model_types import CoreLoss
from headrace_engine.result_types import FinishReason

MAX_CRASHES = 5
"""Crashes within CRASH_WINDOW after which a core is started again; not after the next one."""

CRASH_WINDOW = 600.0
"""Seconds that crashes are remembered."""

PROOF = 2
"""Tokens that clear a suspect: one of a step that computes all ids anew, one of a step for a single id."""


class Recovery:
    """Replaces a lost core, and hands its sequences to the next one, those that may have caused the loss one by one.

    Whoever was in the step that ended the core is a suspect. A suspect is alone in the new core until it has gone on,
    and steps aside for the next one. So a request that brings a core down a second time does so alone, and is ended.

    Args:
        launch: starts a core with the plan of the one before, and returns when it is warm.
        changed: is called when a core was lost, and when its successor is at work.
        given_up: is called when there will be no successor, with why.

    Attributes:
        loss: the core that was lost and has no successor at work yet; None: all is well.
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
        """A core that was ready is lost: bring another to its place, unless that happens too often."""
        self._cancel()
        self._replace(error)

    def give_up(self) -> None:
        """No core is needed any more."""
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
            await self._hand_over()
        except BaseException as error:
            if not is_fault(error):
                raise
            self._task = None
            self._judge(error)
        else:
            self._task = None
            self._changed()

    def _judge(self, error: BaseException) -> None:
        """A core did not become ready: one that crashed is another loss, one that told why would tell it again."""
        if isinstance(error, Internal):
            self._replace(error)
        elif isinstance(error, HeadraceError):
            self._given_up(error)
        else:
            text = f"the core cannot be started again: {in_words(error)}"
            self._given_up(Internal(text))

    def _note(self, error: HeadraceError) -> None:
        """Nothing that the lost core may still say reaches a log from here on.

        Raises:
            Internal: that was one crash too many.
        """
        now = self._clock()
        self.loss = CoreLoss(self._outputs.history.cores, error.message, now)
        for sequence in self._outputs.in_step():
            self._suspect(sequence, error)
        self._outputs.put_back(self._outputs.all())
        self._crashes.append(now)
        while self._crashes[0] <= now - CRASH_WINDOW:
            self._crashes.popleft()
        if len(self._crashes) > MAX_CRASHES:
            text = f"the core crashed {len(self._crashes)} times in {CRASH_WINDOW / 60:.0f} minutes"
            raise Internal(f"{text}; the last time: {error.message}")

    async def _hand_over(self) -> None:
        """Give everything that has not ended to a core that is ready; afterwards all is well."""
        last = None
        while self._suspects:
            if last is not None:
                self._step_aside(last)
            last = self._suspects[0]
            await self._try(last)
            self._suspects.remove(last)
        for sequence in self._outputs.all():
            if sequence is not last:
                self._hand(sequence)
        self.loss = None

    def _suspect(self, sequence: Sequence, error: HeadraceError) -> None:
        if sequence in self._crashed:
            text = f"the request was running when the core crashed twice; the last time: {error.message}"
            self._outputs.finish(sequence, FinishReason.ERROR, text)
            return
        self._crashed.add(sequence)
        self._suspects.append(sequence)

    async def _try(self, sequence: Sequence) -> None:
        """Let the core compute a sequence alone until it has gone on or ended."""
        if sequence.log.end is None:
            self._hand(sequence)
            with suppress(NotFound):  # It was released.
                await sequence.log.wait(len(sequence.log) + PROOF - 1)

    def _step_aside(self, sequence: Sequence) -> None:
        if sequence.log.end is None:
            self._core.send(EndSequence(sequence.key))
            self._outputs.put_back([sequence])

    def _hand(self, sequence: Sequence) -> None:
        """Let the core go on where the log ends."""
        command = self._outputs.command(sequence)
        generated = (*command.generated, *sequence.log.ids)
        scored = 0 if sequence.prompt is None else sequence.prompt.position
        self._core.send(replace(command, key=sequence.key, generated=generated, scored=scored, more=False))
