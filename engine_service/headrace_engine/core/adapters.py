"""Loads adapters between steps: one that fails is reported, and ends nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from headrace_proto.pure.faults import is_fault

from headrace_engine.core.runner import Runner
from headrace_engine.errors import HeadraceError, in_words, sendable
from headrace_engine.ipc.plans import AdapterPlan

_IDLE_WAIT = 0.005
"""Seconds that an idle core waits for an adapter's files before it checks for commands again."""


def load_adapter(runner: Runner, adapter: AdapterPlan) -> str:
    """Read and load an adapter; return why it could not be loaded, or ""."""
    return why_not(lambda: runner.read_adapter(adapter)())


class AdapterReads:
    """Adapters whose files are read in threads, so that steps continue, and that are then loaded between two steps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        # Owned by the core's thread: a reading thread knows its adapter and its future, and loads nothing.
        self._pending: dict[int, Future[Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, adapter: AdapterPlan) -> Future[Callable[[], None]]:
        """Start to read an adapter's files; return what is done when they are read."""
        read: Future[Callable[[], None]] = Future()
        self._pending[adapter.number] = read
        threading.Thread(target=self._read, args=(adapter, read), name="adapter", daemon=True).start()
        return read

    def ready(self, *, block: bool) -> Iterator[tuple[int, Callable[[], str]]]:
        """Yield the number of each adapter that was read, and what loads it and returns why it could not, or "".

        Args:
            block: wait briefly if none is ready.
        """
        if block and self._pending:
            wait(self._pending.values(), _IDLE_WAIT, FIRST_COMPLETED)
        for number, read in list(self._pending.items()):
            if read.done():
                del self._pending[number]
                yield number, partial(_loaded, read)

    def load(self, number: int) -> str:
        """Load an adapter that was read; return why it could not be loaded, or ""."""
        return _loaded(self._pending.pop(number))

    def drop(self, number: int) -> None:
        """Forget an adapter that was read."""
        self._pending.pop(number, None)

    def _read(self, adapter: AdapterPlan, read: Future[Callable[[], None]]) -> None:
        try:
            read.set_result(self._runner.read_adapter(adapter))
        except BaseException as error:  # It is raised again where it is reported.
            read.set_exception(error)


def _loaded(read: Future[Callable[[], None]]) -> str:
    return why_not(lambda: read.result()())


def why_not(load: Callable[[], object]) -> str:
    """Call what reads or loads an adapter; return why that failed, or ""."""
    try:
        load()
    except HeadraceError as error:
        return sendable(error.message)
    except BaseException as error:
        if not is_fault(error):
            raise
        return in_words(error)
    return ""
