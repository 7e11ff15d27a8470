"""The answers to several requests at once, each read by a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace._streaming.result_queue import ResultQueue
from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.model_types import ModelInfo
from headrace.types import GeneratedElements, ModelState

Start = Callable[[], tuple[str, ResultQueue]]
"""Starts a request: `Client.start_request` with its arguments."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """The state of one request since its last piece.

    Attributes:
        index: which request, from 0.
        queue: its queue; None if it could not be started.
        elements: new tokens; None: the request has ended.
        error: why it could not be started, or failed, whatever it is: for the reader to raise.
    """

    index: int
    queue: ResultQueue | None
    elements: GeneratedElements | None = None
    error: BaseException | None = None

    @property
    def last(self) -> bool:
        """True if the request has no further piece."""
        return self.elements is None


class Answers:
    """Starts requests, at most so many at once, and delivers their pieces as they arrive.

    A request is released before its last piece is delivered; its queue still knows how it ended. `close` releases those
    that run, and starts no more; one that is being started then is released once the server has answered.

    Args:
        client: client of the requests.
        starts: starts of the requests, in their order.
        at_once: maximum number of requests at the same time.
        deliver: called with each piece, by threads; must not raise.
    """

    def __init__(self, client: Client, starts: Iterable[Start], at_once: int, deliver: Callable[[Piece], None]) -> None:
        jobs = list(enumerate(starts))
        self._client = client
        self._jobs: Iterator[tuple[int, Start]] = iter(jobs)
        self._deliver = deliver
        self._open: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()
        for _ in range(min(at_once, len(jobs))):
            # A daemon, so that leaving the process waits for no answer.
            threading.Thread(target=self._work, name="headrace-answers", daemon=True).start()

    def close(self) -> None:
        """Release the requests that still run, and start no more; waits for none that is being started.

        Closing again does nothing.
        """
        with self._lock:
            self._closed = True
            handles = list(self._open)
        for handle in handles:
            self._release(handle)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._answer(*job)

    def _next(self) -> tuple[int, Start] | None:
        with self._lock:
            return None if self._closed else next(self._jobs, None)

    def _answer(self, index: int, start: Start) -> None:
        try:
            handle, queue = start()
        except BaseException as error:
            self._deliver(Piece(index, None, error=error))
            return
        last = Piece(index, queue)
        try:
            if self._opened(handle):
                for elements in queue:
                    self._deliver(Piece(index, queue, elements))
        except BaseException as error:
            last = Piece(index, queue, error=error)
        self._release(handle)
        self._deliver(last)

    def _opened(self, handle: str) -> bool:
        """Return whether a request that was started is still wanted."""
        with self._lock:
            self._open.add(handle)
            return not self._closed

    def _release(self, handle: str) -> None:
        with self._lock:
            if handle not in self._open:
                return
            self._open.remove(handle)
        try:
            self._client.release_request(handle)
        except HeadraceError as error:
            logger.warning("could not release a request, which ends with its lease: %s", error)


def slots_of(models: Iterable[ModelInfo]) -> int:
    """Return how many sequences a model's engines compute at once, at least 1."""
    running = [info.effective for info in models if info.state is ModelState.RUNNING]
    slots: list[int] = [effective.config["max_batch"] for effective in running if effective is not None]
    return max(1, sum(slots))
