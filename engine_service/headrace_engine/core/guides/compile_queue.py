"""Who has a grammar compiled next."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from headrace_engine.commands import AddSequence
from headrace_engine.guided.guide import Guide

_OVERTAKEN = 20.0
"""Seconds that a grammar which takes a second may be overtaken by quicker ones of its owner."""

_LOOK = 0.05
"""Seconds until memory of guides that have ended is looked for again."""


@dataclass(order=True, slots=True)
class Job:
    """A sequence that waits for its guide."""

    due: float
    number: int
    request: AddSequence = field(compare=False)
    guide: Future[Guide] = field(compare=False)


class GuideQueue:
    """Sequences that wait for their guides: owners in turn, and of each what is quick before what is slow.

    So nobody waits for more than one grammar of each other owner, nor for long behind his own slow ones; and a slow
    one is overtaken for a time that grows with what it takes, and no longer. Safe to use from several threads.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, list[Job]] = OrderedDict()
        self._numbers = 0
        self._closed = False

    def add(self, request: AddSequence) -> Future[Guide]:
        """Let a sequence wait; returns what its guide will be in."""
        with self._changed:
            self._numbers += 1
            due = self._clock() + request.grammar_seconds * _OVERTAKEN
            job = Job(due, self._numbers, request, Future())
            insort(self._waiting.setdefault(request.owner, []), job)
            self._changed.notify()
            return job.guide

    def discard(self, request: AddSequence) -> None:
        """Let a sequence wait no more. It may wait no longer already."""
        with self._changed:
            left = [job for job in self._waiting.get(request.owner, []) if job.request.key != request.key]
            self._leave(request.owner, left)

    def take(self, fits: Callable[[AddSequence], bool]) -> Job | None:
        """Wait for the next one; None: the line was closed.

        Args:
            fits: whether there is memory for a sequence's guide now.
        """
        with self._changed:
            while not self._closed:
                job = self._next(fits)
                if job is not None:
                    return job
                self._changed.wait(_LOOK if self._waiting else None)
            return None

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _next(self, fits: Callable[[AddSequence], bool]) -> Job | None:
        for owner, jobs in self._waiting.items():
            for job in jobs:
                if fits(job.request):
                    self._leave(owner, [other for other in jobs if other is not job])
                    return job
        return None

    def _leave(self, owner: str, left: list[Job]) -> None:
        """These of an owner are left; the next turn is another's."""
        if self._waiting.pop(owner, None) is not None and left:
            self._waiting[owner] = left
