"""The results of one sequence, as a queue that is read from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace_proto.v1 import request_pb2

from headrace import types
from headrace._base.fork import check_process
from headrace._streaming.base_queue import BaseQueue, seconds_of
from headrace._streaming.feed import Feed


class ResultQueue(BaseQueue):
    """A reader of one sequence, with a position. Several queues may read the same sequence; each gets all of it.

    Every token comes exactly once and in order, whatever happens to the connection meanwhile; checksums prove it.

    | call | tokens unread | nothing unread, running | nothing unread, ended | ended with InternalError | released |
    |---|---|---|---|---|---|
    | `Get()` | all unread, as one element | blocks | None | raises | raises |
    | `GetWithTimeout(ms)` | same | blocks up to ms, then None | None | raises | raises |
    | `GetNoWait()` | same | None | None | raises | raises |

    "Raises" is `EngineLostError` or `InternalServerError` once nothing is left to read, and `RequestReleasedError`
    after the request was released. `UnavailableError` says that nobody could be reached for too long: read again
    later, nothing is lost. Three loops are right: `for elements in queue`; "poll GenerateStatus() until it is terminal,
    then Get()"; "while GenerateStatus() is not terminal: Get()".

    Queues come from `Client.start_request` and `Client.open_queue`. They are safe to use from several threads.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        request: types.AcceptedRequest,
        index: int,
        look: Callable[[], request_pb2.SequenceInfo | None],
    ) -> None:
        super().__init__(feed, request=request, index=index)
        self._feed = feed
        self._look = look

    def Get(self) -> types.GeneratedElements | None:
        """All unread tokens as one element; waits for the first one. None: the sequence ended and nothing is unread.

        Raises:
            EngineLostError: the engine is gone, and nothing is left to read.
            InternalServerError: the engine failed, or the results are damaged, and nothing is left to read.
            RequestReleasedError: the request was released.
            UnavailableError: nobody could be reached for too long, or the client was closed.
        """
        return self._read(None)

    def GetWithTimeout(self, timeout_ms: float) -> types.GeneratedElements | None:
        """As `Get()`, but waits at most so long for a first token; None: nothing came, or the sequence ended.

        Args:
            timeout_ms: milliseconds; 0 does not wait at all.

        Raises:
            TypeError: timeout_ms is no number.
            ValueError: timeout_ms is negative or NaN.
            HeadraceError: as `Get()`.
        """
        return self._read(seconds_of(timeout_ms))

    def GetNoWait(self) -> types.GeneratedElements | None:
        """As `Get()`, but does not wait for tokens that are still to be produced; None: nothing is unread.

        Raises:
            HeadraceError: as `Get()`.
        """
        return self._read(0.0)

    def RequestStatInfo(self) -> types.RequestStat:
        """Statistics of the sequence by name; None where nothing is known yet. Times are milliseconds.

        While the sequence runs they are asked for (one round trip); after its end they are final, after release the
        last ones known.

        Raises:
            HeadraceError: the sequence runs, and the server could not be asked.
        """
        known = self._known_stat()
        return self._answered_stat(self._look()) if known is None else known

    def __iter__(self) -> Iterator[types.GeneratedElements]:
        """Elements until the end; raises as `Get()`."""
        while (elements := self.Get()) is not None:
            yield elements

    def _read(self, seconds: float | None) -> types.GeneratedElements | None:
        check_process(self._process)
        return self._feed.read(seconds)
