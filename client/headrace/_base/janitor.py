"""A thread that does the work of finalizers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from headrace_proto.pure.faults import is_fault

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class Janitor:
    """Runs tasks of finalizers in a thread of its own.

    The garbage collector may run a finalizer at any point, even while the same thread holds a lock of ours or of
    gRPC's. Only `SimpleQueue.put` is safe there, so finalizers queue their work for this thread.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread, unless it runs. Not safe in finalizers."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=_work, args=(self._tasks,), name="headrace-janitor", daemon=True)
                self._thread.start()

    def submit(self, task: Task) -> None:
        """Queue a task. Safe in finalizers."""
        self._tasks.put(task)

    def stop(self) -> None:
        """Run the queued tasks in the calling thread, and end the janitor's thread."""
        _work_off(self._tasks)
        self._tasks.put(None)


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while _do_next(tasks):
        pass


def _do_next(tasks: SimpleQueue[Task | None]) -> bool:
    # A separate function, so that a task and its objects are freed before waiting for the next one.
    task = tasks.get()
    if task is not None:
        _do(task)
    return task is not None


def _work_off(tasks: SimpleQueue[Task | None]) -> None:
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            return
        if task is not None:
            _do(task)


def _do(task: Task) -> None:
    try:
        task()
    except BaseException as bug:
        if not is_fault(bug):
            raise
        logger.exception("cleaning up after a dropped object failed")
