"""The order in which grammars are compiled."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from headrace_engine.characters.stop_words import WordReader
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.commands import AddSequence

_MAX_OVERTAKEN = 20.0
"""Seconds for which quicker grammars of its owner may overtake a grammar, per second of its own cost."""

_MEMORY_POLL = 0.05
"""Seconds between checks whether guides that have ended freed memory."""


@dataclass(frozen=True, slots=True)
class Followers:
    """What follows the text of a sequence.

    Attributes:
        guide: follows its grammar; None: it has none.
        words: finds the stop words of a beam search; None: there are none.
    """

    guide: Guide | None = None
    words: WordReader | None = None


@dataclass(order=True, slots=True)
class Job:
    """A sequence that is waiting for its guide."""

    due: float
    number: int
    request: AddSequence = field(compare=False)
    guide: Future[Followers] = field(compare=False)


class GuideQueue:
    """Sequences that are waiting for their guides: owners take turns, and each owner's quick grammars come first.

    A sequence therefore waits for at most one grammar of each other owner, and not long behind its own owner's slow
    ones. The time for which a slow grammar can be overtaken is bounded in proportion to its cost. Thread-safe.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, list[Job]] = OrderedDict()
        self._numbers = 0
        self._closed = False

    def add(self, request: AddSequence) -> Future[Followers]:
        """Queue a sequence; return the future of its guide."""
        with self._changed:
            self._numbers += 1
            due = self._clock() + request.grammar_seconds * _MAX_OVERTAKEN
            job = Job(due, self._numbers, request, Future())
            insort(self._waiting.setdefault(request.owner, []), job)
            self._changed.notify()
            return job.guide

    def discard(self, request: AddSequence) -> None:
        """Remove a sequence from the queue, if it is still there."""
        with self._changed:
            left = [job for job in self._waiting.get(request.owner, []) if job.request.key != request.key]
            self._set_waiting(request.owner, left)

    def take(self, fits: Callable[[AddSequence], bool]) -> Job | None:
        """Wait for the next job and remove it; None once the queue is closed.

        Args:
            fits: returns True if there is memory for a sequence's guide now.
        """
        with self._changed:
            while not self._closed:
                job = self._next(fits)
                if job is not None:
                    return job
                self._changed.wait(_MEMORY_POLL if self._waiting else None)
            return None

    def close(self) -> None:
        """Empty the queue and end all calls of `take`."""
        with self._changed:
            self._closed = True
            # Their futures never end: whoever closes the queue has stopped waiting for them.
            self._waiting.clear()
            self._changed.notify_all()

    def _next(self, fits: Callable[[AddSequence], bool]) -> Job | None:
        for owner, jobs in self._waiting.items():
            for job in jobs:
                if fits(job.request):
                    self._set_waiting(owner, [other for other in jobs if other is not job])
                    return job
        return None

    def _set_waiting(self, owner: str, left: list[Job]) -> None:
        """Replace the jobs of an owner, who moves to the end of the turn order."""
        if self._waiting.pop(owner, None) is not None and left:
            self._waiting[owner] = left
