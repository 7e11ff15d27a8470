"""Guides in the making: grammars are compiled in a thread, so that steps go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from headrace_engine.commands import AddSequence
from headrace_engine.errors import in_words, is_fault
from headrace_engine.guided.guide import Guide, GuideFailed

MOMENT = 0.005
"""Seconds that a core with nothing else to do waits for a guide before it looks for commands again."""


class GuideMaker(Protocol):
    """Compiles grammars for one model."""

    def guide(self, grammar: str, eos_ids: tuple[int, ...]) -> Guide:
        """A guide at the beginning of a text."""


class Guides:
    """Sequences that wait for their guides.

    Args:
        open_maker: makes what compiles, at the first sequence that has a grammar; takes a moment, so in the thread.
    """

    def __init__(self, open_maker: Callable[[], GuideMaker]) -> None:
        self._open_maker = open_maker
        self._maker: GuideMaker | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guides")
        self._making: dict[int, tuple[AddSequence, Future[Guide]]] = {}

    def __len__(self) -> int:
        return len(self._making)

    def begin(self, request: AddSequence) -> None:
        """Make the guide of a sequence; ids that were generated before are taken."""
        self._making[request.key] = request, self._thread.submit(self._make, request)

    def drop(self, key: int) -> None:
        """The sequence is wanted no more. It may be none of these."""
        found = self._making.pop(key, None)
        if found is not None:
            found[1].cancel()

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
            yield request, future.result() if error is None else _checked(error)

    def close(self) -> None:
        """End the thread; what it compiles now it still does."""
        self._thread.shutdown(cancel_futures=True)

    def _made(self) -> list[tuple[AddSequence, Future[Guide]]]:
        """Those that wait for no guide, neither their own nor one of their group."""
        unfinished = {request.group for request, future in self._making.values() if not future.done()}
        done = [(request, future) for request, future in self._making.values() if future.done()]
        return [(request, future) for request, future in done if not request.group or request.group not in unfinished]

    def _make(self, request: AddSequence) -> Guide:
        if self._maker is None:
            self._maker = self._open_maker()
        guide = self._maker.guide(request.grammar, request.eos_ids)
        guide.take(request.generated)
        return guide


def _checked(error: BaseException) -> Exception:
    """Why there is no guide. The library panics with what is no `Exception`: that costs its sequence alone."""
    if isinstance(error, Exception):
        return error
    if not is_fault(error):
        raise error
    return GuideFailed(f"response_format: its grammar cannot be compiled: {in_words(error)}")
