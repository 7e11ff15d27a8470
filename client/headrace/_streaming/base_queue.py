"""The part that both clients' result queues share: everything but blocking reads."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, Self, TypeVar

from headrace_proto.v1 import request_pb2, stat_pb2

from headrace import types
from headrace._base.fork import check_process, current_process
from headrace._streaming.feed import BaseFeed
from headrace._streaming.reader import SequenceReader
from headrace._values.convert import finish_reason_of, stat_of, stop_match_of

Answer = TypeVar("Answer")


class BaseQueue:
    """A result queue of one sequence without its reads."""

    def __init__(self, feed: BaseFeed, *, request: types.AcceptedRequest, index: int) -> None:
        self._feed_state = feed
        self._request = request
        self._index = index
        self._choices: list[Self] | None = None
        self._last_stat: types.RequestStat | None = None
        self._process = current_process()

    def GenerateStatus(self) -> types.GenerateStatus:
        """Return the status of the sequence without blocking; after a release or lost connection, the last one known.

        The status is in order with the tokens: after the first read it is terminal only if nothing is unread. Before
        the first read, the first call returns `Generating` instead of a terminal status while something is unread;
        later calls return the sequence's own status. To monitor a sequence that another thread or task reads, use
        `Client.get_request`.
        """
        return self._query(SequenceReader.status)

    def GeneratedLength(self) -> int:
        """Return the number of tokens generated so far, read or not; up to a second old while many are unread."""
        return self._query(lambda reader: reader.generated_length)

    @property
    def finish_reason(self) -> types.FinishReason | None:
        """Why the sequence ended; None while it runs or something is unread."""
        end = self._end_if_read()
        return finish_reason_of(end.finish_reason) if end is not None else None

    @property
    def stop_match(self) -> types.StopMatch | None:
        """The stop that ended the sequence; None if none did, while it runs, or while something is unread."""
        end = self._end_if_read()
        return stop_match_of(end) if end is not None else None

    @property
    def choices(self) -> list[Self]:
        """The queues of all sequences of the request, by index, including this one."""
        return list(self._choices) if self._choices is not None else [self]

    @property
    def handle(self) -> str:
        """The request's handle, an opaque string, as `Client.stop_request` and other methods take it."""
        return self._request.handle

    @property
    def request_id(self) -> str:
        """The request's id, as chosen by its client."""
        return self._request.request_id

    @property
    def request(self) -> types.AcceptedRequest:
        """The accepted request: effective config, seed, number of prompt tokens, warnings."""
        return self._request

    @property
    def index(self) -> int:
        """Index of the sequence in the request."""
        return self._index

    @classmethod
    def join(cls, queues: list[Self]) -> None:
        """Set the queues of one request as each other's `choices`."""
        for queue in queues:
            queue._choices = queues

    def _known_stat(self) -> types.RequestStat | None:
        """Return the statistics if no call is needed for them, else None."""
        end, released = self._query(lambda reader: (reader.end, reader.released))
        if end is not None and end.HasField("stat"):
            self._last_stat = stat_of(end.stat)
        elif end is None and not released:
            return None
        return self._last_stat or stat_of(stat_pb2.RequestStatInfo())

    def _answered_stat(self, info: request_pb2.SequenceInfo | None) -> types.RequestStat:
        """Return the statistics in the server's answer; `info` is None while the sequence does not exist yet."""
        if info is not None:
            self._last_stat = stat_of(info.end.stat if info.HasField("end") else info.stat)
        return self._last_stat or stat_of(stat_pb2.RequestStatInfo())

    def _query(self, question: Callable[[SequenceReader], Answer]) -> Answer:
        check_process(self._process)
        return self._feed_state.query(question)

    def _end_if_read(self) -> request_pb2.EndRecord | None:
        return self._query(lambda reader: None if reader.unread and not reader.released else reader.end)


def seconds_of(timeout_ms: float) -> float:
    """Return the argument of `GetWithTimeout` in seconds.

    Raises:
        TypeError: it is not a number.
        ValueError: it is negative or NaN.
    """
    given: Any = timeout_ms
    is_number = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not is_number:
        raise TypeError(f"GetWithTimeout(timeout_ms={given!r}): must be a number of milliseconds")
    if not timeout_ms >= 0:
        raise ValueError(f"timeout_ms = {timeout_ms}: must be at least 0 milliseconds")
    return timeout_ms / 1000
