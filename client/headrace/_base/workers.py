"""Threads that run tasks, as many as are needed up to a limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from headrace_proto.pure.faults import is_fault

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class Workers:
    """Runs tasks in daemon threads, which start with the first tasks and end with `stop`.

    Args:
        name: name of the threads.
        most: maximum number of threads.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._started = 0
        self._stopped = False
        self._lock = threading.Lock()

    def submit(self, task: Task) -> None:
        """Queue a task; after `stop` it is dropped."""
        with self._lock:
            if self._stopped:
                return
            self._tasks.put(task)
            if self._started < self._most:
                self._started += 1
                threading.Thread(target=_work, args=(self._tasks,), name=self._name, daemon=True).start()

    def stop(self) -> None:
        """End the threads after the tasks that were queued. Does not wait."""
        with self._lock:
            self._stopped = True
            for _ in range(self._started):
                self._tasks.put(None)


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while _do_next(tasks):
        pass


def _do_next(tasks: SimpleQueue[Task | None]) -> bool:
    # A separate function, so that a task and its objects are freed before waiting for the next one.
    task = tasks.get()
    if task is None:
        return False
    try:
        task()
    except BaseException as bug:
        if not is_fault(bug):
            raise
        logger.exception("a background task failed")
    return True
