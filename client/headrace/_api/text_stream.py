"""The text of one request, as an iterator that cleans up after itself."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from headrace._base.closing import Closing
from headrace._base.janitor import Janitor
from headrace._streaming.result_queue import ResultQueue
from headrace.errors import HeadraceError, RequestReleasedError, UnavailableError

logger = logging.getLogger(__name__)


class TextStream(Closing):
    """An iterator over the text of a request as it is generated.

    The request is stopped and released at the end of the iteration, by `close()`, when left as a context manager, and
    when dropped.

    Attributes:
        queue: the request's result queue, with token ids, logprobs and statistics. It can be read until the iteration
            ends; `queue.finish_reason` and `queue.RequestStatInfo()` remain available afterwards.
    """

    def __init__(
        self,
        queue: ResultQueue,
        release: Callable[[str], None],
        try_release: Callable[[str], None],
        janitor: Janitor,
    ) -> None:
        self.queue = queue
        self._elements = iter(queue)
        janitor.start()
        self._handle = queue.handle
        self._verb = release
        self._try_release = try_release
        self._dropped = weakref.finalize(self, janitor.submit, partial(_release, queue.handle, release))

    def __iter__(self) -> Iterator[str]:
        """Return the iterator itself."""
        return self

    def __next__(self) -> str:
        """Return the next non-empty piece of text. Raises as `ResultQueue.Get`; ends after `close()`."""
        if self._closed():
            raise StopIteration
        try:
            return next(elements.text for elements in self._elements if elements.text)
        except BaseException as error:
            if self._closed() and isinstance(error, RequestReleasedError):  # Another thread closed it.
                raise StopIteration from None
            if isinstance(error, UnavailableError) and error.reason != "CLIENT_CLOSED":
                self._abandon()
            else:
                self.close()
            raise

    def _closed(self) -> bool:
        return not self._dropped.alive

    def close(self) -> None:
        """Stop and release the request; do nothing the second time. A failure is logged, and the lease ends it."""
        if self._dropped.detach() is not None:
            _release(self._handle, self._verb)

    def _abandon(self) -> None:
        """Try once to release the request: the server is unreachable, so its lease may have to end it."""
        if self._dropped.detach() is not None:
            with suppress(HeadraceError):
                self._try_release(self._handle)


def _release(handle: str, release: Callable[[str], None]) -> None:
    try:
        release(handle)
    except HeadraceError as error:
        logger.warning("could not release a request, which ends with its lease: %s", error)
