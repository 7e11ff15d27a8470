"""Compiles the grammars and stop words of sequences in a thread, so that steps continue.

Until its guide is compiled, a sequence belongs to `Guides`: the scheduler does not know it, and it holds no blocks.
`ready` hands it over to the core, which queues it with the scheduler or ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol

from headrace_proto.pure.faults import is_fault

from headrace_engine.characters.stop_words import WordReader
from headrace_engine.core.guides.compile_queue import Followers, GuideQueue
from headrace_engine.errors import in_words
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.commands import AddSequence

IDLE_WAIT = 0.005
"""Seconds that an idle core waits for a guide before it checks for commands again."""

_STACK = 16 << 20
"""Stack of the thread, in bytes: four times that of the process that checked the format."""


class GuideMaker(Protocol):
    """Compiles grammars for one model."""

    def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int, seconds: float) -> Guide:
        """Return a guide at the start of a text.

        Args:
            size: bytes that the grammar took when it was checked.
            seconds: processor time that it took then.
        """

    def word_reader(
        self, words: Sequence[str], prompt: Sequence[int], kept: AbstractSet[int], *, skips_special: bool
    ) -> WordReader:
        """Return a reader of texts that continue a prompt, which finds words."""

    def has_capacity(self, grammar: str, size: int) -> bool:
        """Return True if there is memory for a grammar of this size, in bytes."""


class Guides:
    """Sequences that are waiting for their guides.

    Args:
        open_maker: returns the compiler; called in the thread for the first grammar, since it may take a while.
    """

    def __init__(self, open_maker: Callable[[], GuideMaker]) -> None:
        self._open_maker = open_maker
        self._maker: GuideMaker | None = None  # Of the compiling thread alone.
        self._queue = GuideQueue()
        self._thread: threading.Thread | None = None
        self._pending: dict[int, tuple[AddSequence, Future[Followers]]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, request: AddSequence) -> None:
        """Start compiling the guide of a sequence; it will have consumed the ids generated before."""
        self._pending[request.key] = request, self._queue.add(request)
        if self._thread is None:
            self._thread = _start_thread(self._work)

    def drop(self, key: int) -> None:
        """Drop a sequence, if it is one of these."""
        found = self._pending.pop(key, None)
        if found is not None:
            # One that is being compiled goes on: nobody takes the guide, which is freed with its future.
            found[1].cancel()
            self._queue.discard(found[0])

    def ready(self, *, block: bool) -> Iterator[tuple[AddSequence, Followers | Exception]]:
        """Yield each sequence once its guide is compiled or has failed, in order of arrival.

        Sequences of a group are yielded together.

        Args:
            block: wait up to IDLE_WAIT if none is ready.
        """
        if block and not self._compiled():
            wait([future for _, future in self._pending.values() if not future.done()], IDLE_WAIT, FIRST_COMPLETED)
        for request, future in self._compiled():
            # Whoever iterates owns the sequence from here on: it is queued, or its end is reported.
            del self._pending[request.key]
            error = future.exception()
            yield request, future.result() if error is None else _as_exception(error)

    def close(self) -> None:
        """End the thread after the grammar that it is compiling."""
        self._queue.close()

    def _compiled(self) -> list[tuple[AddSequence, Future[Followers]]]:
        """Return the sequences that wait neither for their own guide nor for one of their group."""
        unfinished = {request.group for request, future in self._pending.values() if not future.done()}
        done = [(request, future) for request, future in self._pending.values() if future.done()]
        return [(request, future) for request, future in done if not request.group or request.group not in unfinished]

    def _work(self) -> None:
        while (job := self._queue.take(self._fits)) is not None:
            if not job.guide.set_running_or_notify_cancel():
                continue
            try:
                job.guide.set_result(self._make(job.request))
            except BaseException as error:  # Even a panic must reach the waiting sequence.
                job.guide.set_exception(error)

    def _fits(self, request: AddSequence) -> bool:
        if self._maker is None or not request.grammar:
            return True
        return self._maker.has_capacity(request.grammar, request.grammar_bytes)

    def _make(self, request: AddSequence) -> Followers:
        if self._maker is None:
            self._maker = self._open_maker()
        return Followers(_guide(self._maker, request), _words(self._maker, request))


def _guide(maker: GuideMaker, request: AddSequence) -> Guide | None:
    if not request.grammar:
        return None
    guide = maker.guide(request.grammar, request.eos_ids, request.grammar_bytes, request.grammar_seconds)
    guide.take(request.generated)
    return guide


def _words(maker: GuideMaker, request: AddSequence) -> WordReader | None:
    plan = request.beams
    if plan is None or not plan.words:
        return None
    return maker.word_reader(plan.words, request.prompt, frozenset(plan.kept), skips_special=plan.skips_special)


def _start_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="guides", daemon=True)
    before = threading.stack_size(_STACK)
    thread.start()
    threading.stack_size(before)
    return thread


def _as_exception(error: BaseException) -> Exception:
    """Convert a panic of the library, which is not an `Exception`, into one: it must end its sequence alone."""
    if isinstance(error, Exception):
        return error
    if not is_fault(error):
        raise error
    return RuntimeError(f"response_format: {in_words(error)}")
