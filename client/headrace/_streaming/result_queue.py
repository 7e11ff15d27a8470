"""The result queue of the synchronous client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace_proto.v1 import request_pb2

from headrace import types
from headrace._base.fork import check_process
from headrace._streaming.base_queue import BaseQueue, seconds_of
from headrace._streaming.feed import Feed


class ResultQueue(BaseQueue):
    """The results of one sequence, read from a position on. Queues of the same sequence are independent.

    Every token is delivered exactly once and in order, also when connections break; checksums verify it.

    | call | tokens unread | nothing unread, running | nothing unread, ended | ended with InternalError | released |
    |---|---|---|---|---|---|
    | `Get()` | all unread, as one element | blocks | None | raises | raises |
    | `GetWithTimeout(ms)` | same | blocks up to ms, then None | None | raises | raises |
    | `GetNoWait()` | same | None | None | raises | raises |

    "Raises" is `EngineLostError` or `InternalServerError` once nothing is left to read, and `RequestReleasedError`
    after the request was released. `UnavailableError` means that no server could be reached within the retry policy's
    `give_up_after`; nothing is lost, and the read can be repeated. Three kinds of loops work: `for elements in queue`;
    "poll GenerateStatus() until it is terminal, then Get()"; "while GenerateStatus() is not terminal: Get()".

    Queues are returned by `Client.start_request` and `Client.open_queue`. They are thread-safe.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        request: types.AcceptedRequest,
        index: int,
        fetch_info: Callable[[], request_pb2.SequenceInfo | None],
    ) -> None:
        super().__init__(feed, request=request, index=index)
        self._feed = feed
        self._fetch_info = fetch_info

    def Get(self) -> types.GeneratedElements | None:
        """Return all unread tokens as one element, waiting for the first one; None once the sequence has ended.

        Raises:
            EngineLostError: the engine is gone, and nothing is left to read.
            InternalServerError: the engine failed, or the results are damaged, and nothing is left to read.
            RequestReleasedError: the request was released.
            UnavailableError: no server could be reached for too long, or the client was closed.
        """
        return self._read(None)

    def GetWithTimeout(self, timeout_ms: float) -> types.GeneratedElements | None:
        """Return as `Get()`, waiting at most `timeout_ms` for the first token; None on timeout too.

        Args:
            timeout_ms: milliseconds; 0 does not wait.

        Raises:
            TypeError: timeout_ms is not a number.
            ValueError: timeout_ms is negative or NaN.
            HeadraceError: as `Get()`.
        """
        return self._read(seconds_of(timeout_ms))

    def GetNoWait(self) -> types.GeneratedElements | None:
        """Return as `Get()`, without waiting for tokens that are yet to be generated; None if nothing is unread.

        Raises:
            HeadraceError: as `Get()`.
        """
        return self._read(0.0)

    def RequestStatInfo(self) -> types.RequestStat:
        """Return the sequence's statistics, in milliseconds; a value is None until it is known.

        While the sequence runs, this takes a call to the server. After its end they are final; after a release they
        are the last ones known.

        Raises:
            HeadraceError: the sequence runs, and the call failed.
        """
        known = self._known_stat()
        return self._answered_stat(self._fetch_info()) if known is None else known

    def __iter__(self) -> Iterator[types.GeneratedElements]:
        """Iterate over elements until the end of the sequence; raises as `Get()`."""
        while (elements := self.Get()) is not None:
            yield elements

    def _read(self, seconds: float | None) -> types.GeneratedElements | None:
        check_process(self._process)
        return self._feed.read(seconds)
