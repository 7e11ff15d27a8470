"""The text of one request, as an iterator that cleans up after itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from headrace.janitor import Janitor
from headrace.result_queue import ResultQueue


class TextStream:
    """Iterates over the text of a request as it comes, until its end.

    The request is stopped and released at the end, by `close()`, when left as a context manager, and when dropped.

    Attributes:
        queue: the results themselves; readable until the end of the iteration. Ids, log-probabilities and statistics
            are there; `queue.finish_reason` and `queue.RequestStatInfo()` stay after the end.
    """

    def __init__(self, queue: ResultQueue, release: Callable[[], None], janitor: Janitor) -> None:
        self.queue = queue
        self._elements = iter(queue)
        janitor.start()
        self._dropped = weakref.finalize(self, janitor.ask, release)
        self._release = release

    def __iter__(self) -> Iterator[str]:
        """Itself."""
        return self

    def __next__(self) -> str:
        """The next piece of text, never empty; raises what `ResultQueue.Get` raises."""
        try:
            return next(elements.text for elements in self._elements if elements.text)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops and releases the request; does nothing the second time."""
        if self._dropped.detach() is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
