"""The ids and state of a sequence that the client keeps, so that another engine can continue it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable

from headrace_proto.v1 import request_pb2, stat_pb2

from headrace.errors import HeadraceError


class Delivered:
    """The ids of a sequence that have arrived, and its statistics: the last reported ones, else what was seen here.

    Args:
        now: wall clock, in seconds since the epoch.

    Attributes:
        drained: the end that a draining engine gave the sequence; None: its engine has not ended it so.
        lost: the loss of its engine; None while it is not lost.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.drained: request_pb2.EndRecord | None = None
        self.lost: HeadraceError | None = None
        self._now = now
        self._ids = array("I")
        self._reported: stat_pb2.RequestStatInfo | None = None
        self._seen = stat_pb2.RequestStatInfo()
        self._mark(self._seen.arrival_time)

    def began(self) -> None:
        """Record that the prompt is being computed, unless that is known already."""
        if not self._seen.HasField("scheduled_time"):
            self._mark(self._seen.scheduled_time)

    def add(self, ids: Iterable[int]) -> None:
        """Keep ids that have arrived."""
        if not self._ids:
            self.began()
            self._mark(self._seen.first_token_time)
        self._ids.extend(ids)

    def learn(self, stat: stat_pb2.RequestStatInfo) -> None:
        """Take over statistics that the engine reported."""
        self._reported = stat

    def drain(self, end: request_pb2.EndRecord) -> None:
        """Take the end that a draining engine gave the sequence."""
        self.drained = end
        self.learn(end.stat)

    def adrift(self, position: int) -> bool:
        """True if another engine has to continue the sequence, all of which before `position` has arrived."""
        return self.lost is not None or (self.drained is not None and position >= self.drained.position)

    def resumed(self, index: int, *, ended: bool) -> request_pb2.ResumedSequence:
        """Return what the next engine is sent of the sequence.

        Args:
            index: index of the sequence.
            ended: all of it was delivered.
        """
        message = request_pb2.ResumedSequence(index=index, delivered_ids=self._ids, ended=ended)
        message.stat.CopyFrom(self._seen)
        if self._reported is not None:
            message.stat.MergeFrom(self._reported)
        return message

    def _mark(self, field: object) -> None:
        field.FromNanoseconds(int(self._now() * 1e9))  # type: ignore[attr-defined]
