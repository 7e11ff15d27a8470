"""Receives commands between two steps, and prepares what they need: grammars are compiled, adapters are read.

What takes long runs in threads, so that steps continue; a sequence reaches the scheduler when its grammar is compiled.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace_engine.core.adapters import AdapterReads
from headrace_engine.core.guides.compile_queue import Followers
from headrace_engine.core.guides.compiler import Guides
from headrace_engine.core.link import Link
from headrace_engine.core.scheduling.schedule import Schedule
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.steps.outcome import Outcome
from headrace_engine.ipc.commands import (
    AddSequence,
    AddSibling,
    CoreCommand,
    EndSequence,
    LoadAdapter,
    Ping,
    Shutdown,
)
from headrace_engine.ipc.messages import AdapterLoaded, Pong
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.result_types import FinishReason

_NONE = Followers()


class Intake:
    """Carries out the commands of a link.

    Args:
        scheduler: gets the sequences.
        outcome: reports those that end before they are computed.
        guides: compiles grammars.
        adapters: reads adapters.
        max_length: tokens of the longest sequence.
        most: maximum number of running sequences.

    Attributes:
        stopped: a Shutdown has arrived.
    """

    def __init__(
        self,
        link: Link,
        scheduler: Scheduler,
        outcome: Outcome,
        guides: Guides,
        adapters: AdapterReads,
        max_length: int,
        most: int,
    ) -> None:
        self._link = link
        self._scheduler = scheduler
        self._outcome = outcome
        self._guides = guides
        self._adapters = adapters
        self._max_length, self._most = max_length, most
        self._group: list[AddSequence] = []
        self.stopped = False

    @property
    def pending(self) -> bool:
        """True if a grammar is being compiled, or an adapter read."""
        return bool(self._guides) or bool(self._adapters)

    def take(self, *, has_work: Callable[[], bool], finish_step: Callable[[], None]) -> None:
        """Carry out the commands that have arrived. Blocks for one when there is nothing else to do.

        Args:
            has_work: returns True if a step can be computed without a further command, guide or adapter.
            finish_step: finishes the in-flight step, if there is one.
        """
        idle = not (has_work() or self.pending)
        if idle:
            self._idle()
        commands = self._link.receive(block=idle)
        while commands and isinstance(commands[-1], AddSequence | AddSibling) and commands[-1].more:
            commands += self._link.receive(block=True)
        for command in commands:
            self._handle(command)
        if self._guides:
            self._enqueue_guided(block=not has_work())
        if self._adapters:
            self._load_adapters(finish_step, block=not has_work())

    def close(self) -> None:
        """End the thread that compiles grammars, after the one that it is compiling."""
        self._guides.close()

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
                self.stopped = True
            case CorePlan():
                raise ValueError("a core takes one plan")

    def _enqueue_guided(self, *, block: bool) -> None:
        """Queue sequences whose grammar has compiled."""
        for request, followers in self._guides.ready(block=block):
            if isinstance(followers, Exception):
                self._outcome.refuse(request, followers)
            else:
                self._enqueue(request, followers)

    def _load_adapters(self, finish_step: Callable[[], None], *, block: bool) -> None:
        """Load the adapters that were read, between two steps: rows of ended sequences may still read their memory."""
        for number, load in self._adapters.ready(block=block):
            finish_step()
            self._link.send(AdapterLoaded(number, load()))

    def _add(self, command: AddSequence | AddSibling) -> None:
        request = command if isinstance(command, AddSequence) else command.whole(self._group.pop())
        if command.more:
            # Kept for the next sibling only, which has arrived too: `take` receives a group as a whole.
            self._group.append(request)
        if request.is_followed:
            self._guides.begin(request)
        else:
            self._enqueue(request)

    def _enqueue(self, request: AddSequence, followers: Followers = _NONE) -> None:
        # The scheduler's from here on, even what is refused: so every end takes the same way.
        sequence = self._scheduler.add(request, followers.guide, followers.words)
        if error := self._refusal(request):
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

    def _refusal(self, request: AddSequence) -> str:
        """Return why a sequence cannot be computed, or "". The front half should have refused it."""
        if not request.prompt:
            return "the prompt is empty"
        if request.beams is not None and request.beams.num_beams > self._most:
            return f"{request.beams.num_beams} beams; {self._most} sequences are computed at once"
        length = len(request.prompt) + max(request.max_new, len(request.generated))
        if length > self._max_length:
            return f"prompt of {len(request.prompt)} + generated are {length} tokens; max_length is {self._max_length}"
        return ""
