"""The results of one sequence, as a queue that is read from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace import types
from headrace.convert import finish_reason_of, stat_of, stop_match_of
from headrace.feed import Feed
from headrace.fork import check_process, current_process
from headrace.reader import SequenceReader
from headrace.v1 import request_pb2, stat_pb2

Answer = TypeVar("Answer")


class ResultQueue:
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
        self._feed = feed
        self._request = request
        self._index = index
        self._look = look
        self._choices: list[ResultQueue] | None = None
        self._last_stat: types.RequestStat | None = None
        self._process = current_process()

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
            ValueError: timeout_ms is negative or not a number.
            HeadraceError: as `Get()`.
        """
        if not timeout_ms >= 0:
            raise ValueError(f"timeout_ms = {timeout_ms}: must be at least 0 milliseconds")
        return self._read(timeout_ms / 1000)

    def GetNoWait(self) -> types.GeneratedElements | None:
        """As `Get()`, but does not wait for tokens that are still to be produced; None: nothing is unread.

        Raises:
            HeadraceError: as `Get()`.
        """
        return self._read(0.0)

    def GenerateStatus(self) -> types.GenerateStatus:
        """Where the sequence is. Never blocks; after release or a lost connection: as last known.

        It is in order with the tokens: from the first read on it is terminal only when nothing is unread. Before the
        first read, the first call never answers a terminal status while something is unread (it answers `Generating`);
        later calls tell the request's own status. A monitor beside a reader uses `Client.get_request`.
        """
        return self._ask(SequenceReader.status)

    def GeneratedLength(self) -> int:
        """Tokens produced so far, read or not; up to a second old where many are unread."""
        return self._ask(lambda reader: reader.generated_length)

    def RequestStatInfo(self) -> types.RequestStat:
        """Statistics of the sequence by name; None where nothing is known yet. Times are milliseconds.

        While the sequence runs they are asked for (one round trip); after its end they are final, after release the
        last ones known.

        Raises:
            HeadraceError: the sequence runs, and the server could not be asked.
        """
        end, released = self._ask(lambda reader: (reader.end, reader.released))
        if end is not None and end.HasField("stat"):
            self._last_stat = stat_of(end.stat)
        elif end is None and not released:
            info = self._look()
            if info is not None:
                self._last_stat = stat_of(info.end.stat if info.HasField("end") else info.stat)
        return self._last_stat or stat_of(stat_pb2.RequestStatInfo())

    def __iter__(self) -> Iterator[types.GeneratedElements]:
        """Elements until the end; raises as `Get()`."""
        while (elements := self.Get()) is not None:
            yield elements

    @property
    def finish_reason(self) -> types.FinishReason | None:
        """Why the sequence ended; None while it runs or has something unread."""
        end = self._end_if_read()
        return finish_reason_of(end.finish_reason) if end is not None else None

    @property
    def stop_match(self) -> types.StopMatch | None:
        """Which stop ended the sequence; None where none did, while it runs, or while something is unread."""
        end = self._end_if_read()
        return stop_match_of(end) if end is not None else None

    @property
    def choices(self) -> list[ResultQueue]:
        """The queues of all sequences of the request, by index; this one is among them."""
        return list(self._choices) if self._choices is not None else [self]

    @property
    def handle(self) -> str:
        """The request's handle, for `Client.stop_request` and its like; opaque."""
        return self._request.handle

    @property
    def request_id(self) -> str:
        """The request's id, as its client chose it."""
        return self._request.request_id

    @property
    def request(self) -> types.AcceptedRequest:
        """What the start answered: effective config, seed, number of prompt tokens, warnings."""
        return self._request

    @property
    def index(self) -> int:
        """The sequence's number in the request."""
        return self._index

    @staticmethod
    def join(queues: list[ResultQueue]) -> None:
        """Makes the queues of one request each other's `choices`."""
        for queue in queues:
            queue._choices = queues

    def _read(self, seconds: float | None) -> types.GeneratedElements | None:
        check_process(self._process)
        return self._feed.read(seconds)

    def _ask(self, question: Callable[[SequenceReader], Answer]) -> Answer:
        check_process(self._process)
        return self._feed.ask(question)

    def _end_if_read(self) -> request_pb2.EndRecord | None:
        return self._ask(lambda reader: None if reader.unread and not reader.released else reader.end)
