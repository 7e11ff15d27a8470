"""Guides in the making: grammars are compiled in a thread, so that steps go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol

from headrace_proto.pure.faults import is_fault

from headrace_engine.commands import AddSequence
from headrace_engine.core.guides.compile_queue import GuideQueue
from headrace_engine.errors import in_words
from headrace_engine.guided.guide import Guide

MOMENT = 0.005
"""Seconds that a core with nothing else to do waits for a guide before it looks for commands again."""

_STACK = 16 << 20
"""Bytes of stack of the thread: four times what a format had where it was checked."""


class GuideMaker(Protocol):
    """Compiles grammars for one model."""

    def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int, seconds: float) -> Guide:
        """A guide at the beginning of a text; bytes and processor time are what the grammar was found to take."""

    def has_capacity(self, grammar: str, size: int) -> bool:
        """Whether there is memory for a grammar of so many bytes."""


class Guides:
    """Sequences that wait for their guides.

    Args:
        open_maker: makes what compiles, at the first sequence that has a grammar; takes a moment, so in the thread.
    """

    def __init__(self, open_maker: Callable[[], GuideMaker]) -> None:
        self._open_maker = open_maker
        self._maker: GuideMaker | None = None
        self._line = GuideQueue()
        self._thread: threading.Thread | None = None
        self._making: dict[int, tuple[AddSequence, Future[Guide]]] = {}

    def __len__(self) -> int:
        return len(self._making)

    def begin(self, request: AddSequence) -> None:
        """Make the guide of a sequence; ids that were generated before are taken."""
        self._making[request.key] = request, self._line.add(request)
        if self._thread is None:
            self._thread = _started(self._work)

    def drop(self, key: int) -> None:
        """The sequence is wanted no more. It may be none of these."""
        found = self._making.pop(key, None)
        if found is not None:
            found[1].cancel()
            self._line.discard(found[0])

    def ready(self, *, block: bool) -> Iterator[tuple[AddSequence, Guide | Exception]]:
        """Sequences whose guides are made, or cannot be, in the order in which they came; each once.

        Those of a group come together.

        Args:
            block: wait a moment for one.
        """
        if block and not self._made():
            wait([future for _, future in self._making.values() if not future.done()], MOMENT, FIRST_COMPLETED)
        for request, future in self._made():
            del self._making[request.key]
            error = future.exception()
            yield request, future.result() if error is None else _told(error)

    def close(self) -> None:
        """End the thread; what it compiles now it still does."""
        self._line.close()

    def _made(self) -> list[tuple[AddSequence, Future[Guide]]]:
        """Those that wait for no guide, neither their own nor one of their group."""
        unfinished = {request.group for request, future in self._making.values() if not future.done()}
        done = [(request, future) for request, future in self._making.values() if future.done()]
        return [(request, future) for request, future in done if not request.group or request.group not in unfinished]

    def _work(self) -> None:
        while (job := self._line.take(self._fits)) is not None:
            if not job.guide.set_running_or_notify_cancel():
                continue
            try:
                job.guide.set_result(self._make(job.request))
            except BaseException as error:  # Who waits is told, whatever it is.
                job.guide.set_exception(error)

    def _fits(self, request: AddSequence) -> bool:
        return self._maker is None or self._maker.has_capacity(request.grammar, request.grammar_bytes)

    def _make(self, request: AddSequence) -> Guide:
        if self._maker is None:
            self._maker = self._open_maker()
        guide = self._maker.guide(request.grammar, request.eos_ids, request.grammar_bytes, request.grammar_seconds)
        guide.take(request.generated)
        return guide


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="guides", daemon=True)
    before = threading.stack_size(_STACK)
    thread.start()
    threading.stack_size(before)
    return thread


def _told(error: BaseException) -> Exception:
    """Why there is no guide. A panic is no `Exception`: it costs its sequence alone."""
    if isinstance(error, Exception):
        return error
    if not is_fault(error):
        raise error
    return RuntimeError(f"response_format: {in_words(error)}")
