"""One channel of a session: a reader of one sequence's log, with a position and a window."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.sessions.session_channels import Place, Timers
from headrace_engine.engine.sessions.session_update import (
    ROW_BYTES,
    Attached,
    HandleError,
    SequenceEnd,
    SessionUpdate,
    StatusChange,
    WindowState,
)
from headrace_engine.errors import InvalidArgument, NotFound, ResourceExhausted
from headrace_engine.result_types import GenerateStatus, PrefixReuse

_GENERATING = GenerateStatus.GENERATING

MAX_FOLLOWERS = 2048
"""Readers of one sequence in all sessions: each of its tokens is sent to every one of them. A gateway that resumes a
reader has two for a moment."""

WINDOW_INTERVAL = 1.0
"""Seconds between two words about a window that stays closed."""


class Reader:
    """Reads one sequence for one channel. Nothing is queued: what comes next is looked up in the log by position.

    It counts as somebody who is there for the request until `close`.

    Args:
        window: tokens that may be told beyond the acknowledged position.
        changed: called with the reader whenever it may have something to tell.

    Raises:
        NotFound: there is no such sequence.
        OutOfRange: the position is outside the log.
        ResourceExhausted: the sequence has MAX_FOLLOWERS already.
    """

    def __init__(
        self,
        place: Place,
        request: Request,
        from_position: int,
        window: int,
        changed: Callable[[Reader], None],
        timers: Timers,
    ) -> None:
        self._log = request.sequence(place.index).log
        self._log.check_position(from_position)
        if self._log.followers >= MAX_FOLLOWERS:
            text = f"this sequence has {MAX_FOLLOWERS} readers in sessions, the maximum"
            raise ResourceExhausted(f"{text}: detach some, or try again later", retry_after=1.0)
        self.place, self._channel, self._request = place, place.channel, request
        self._position = self._acked = from_position
        self._window = self._open_window = window
        self._limit = from_position + window
        self._changed, self._timers = changed, timers
        self._attached = self._ended = self._closed = False
        self._status: GenerateStatus | None = None
        self._prefix: PrefixReuse | None = None
        self._told_closed = False
        self._told_length = 0
        self._told_time = 0.0
        self._alarm: Any = None
        request.arrive()
        self._log.follow(self)

    @property
    def done(self) -> bool:
        """The end and all tokens before it were told."""
        return self._ended and self._position == len(self._log)

    def touch(self) -> None:
        """The log changed. Of a closed window the alarm tells: many of them would make every token dear."""
        log = self._log
        waits = self._alarm is not None and self._position >= self._limit and log.end is None and not log.released
        if not waits or self._status is not _GENERATING or log.prefix is not self._prefix:
            self._changed(self)

    def close(self) -> None:
        """Read no more, and be there for the request no more."""
        if not self._closed:
            self._closed = True
            self._log.unfollow(self)
            self._request.leave()
            self._disarm()

    def ack(self, position: int, window: int | None, path: str) -> None:
        """Move and perhaps resize the window. Without a window, one that was acknowledged as 0 opens as it was.

        Args:
            path: of the ack in its message.

        Raises:
            InvalidArgument: the position was acknowledged before, or not told yet.
        """
        if not self._acked <= position <= self._position:
            allowed = f"allowed: {self._acked} to {self._position}, from the last ack to what was sent"
            raise InvalidArgument.field(f"{path}.position", f"= {position} is out of range; {allowed}")
        self._acked = position
        self._window = self._open_window if window is None else window
        self._open_window = self._window or self._open_window
        self._limit = position + self._window
        self._told_closed = self._told_closed and self._limit <= self._position
        self._changed(self)

    def tell(self, update: SessionUpdate) -> bool:
        """Add what is new: the attach, tokens, status, end and window, in this order."""
        log = self._log
        if log.released:
            self._refuse(update)
            return False
        if not self._attached:
            self._tell_attached(update)
        stop = min(len(log), self._limit)
        if self._position < stop:
            self._tell_tokens(update, stop)
        if self._status is not _GENERATING or log.prefix is not self._prefix:
            self._tell_status(update)
        if self._position < stop:
            return True
        if log.end is not None and not self._ended:
            self._ended = True
            update.end(SequenceEnd(self._channel, log.end))
        if self._position >= self._limit:
            self._tell_window(update)
        return False

    def _refuse(self, update: SessionUpdate) -> None:
        error = NotFound("the request was released", metadata={"handle": self.place.handle})
        update.refuse(HandleError(self._channel, self.place.handle, self.place.index, error))

    def _tell_attached(self, update: SessionUpdate) -> None:
        log = self._log
        self._attached, self._status, self._prefix = True, log.status, log.prefix
        before = log.checksum_before(self._position)
        update.attach(Attached(self._channel, self._position, before, log.status, len(log), log.prefix))

    def _tell_tokens(self, update: SessionUpdate, stop: int) -> None:
        start, rows = self._position, update.rows
        token_bytes = self._log.options.message_bytes
        stop, size = self._log.contents.fitting(start, stop, update.limit - update.size - ROW_BYTES, token_bytes)
        if stop == start:
            if rows.channels:
                return
            # A token that is larger than an update goes alone.
            stop, size = self._log.contents.fitting(start, start + 1, sys.maxsize, token_bytes)
        ids, text, checksum, details = self._log.contents.columns(start, stop)
        if details is not None:
            rows.details[len(rows.channels)] = details
        rows.channels.append(self._channel)
        rows.positions.append(start)
        rows.counts.append(stop - start)
        rows.token_ids.extend(ids)
        rows.texts.append(text)
        rows.checksums.append(checksum)
        update.size += ROW_BYTES + size
        self._position = stop

    def _tell_status(self, update: SessionUpdate) -> None:
        """A status that was passed over is not told; cache use is told in any case, before the end."""
        log = self._log
        status = log.live_status
        if log.prefix == self._prefix and (log.end is not None or status is self._status):
            return
        self._status, self._prefix = status, log.prefix
        update.change(StatusChange(self._channel, status, log.prefix))

    def _tell_window(self, update: SessionUpdate) -> None:
        length = len(self._log)
        if self._told_closed and (length == self._told_length or self._ended):
            return
        if self._position == length and self._log.end is not None:
            return  # Nothing waits, and nothing will.
        now = self._timers.time()
        due = self._told_time + WINDOW_INTERVAL
        if self._told_closed and now < due:
            self._arm(due - now)
            return
        self._told_closed, self._told_length, self._told_time = True, length, now
        update.hold(WindowState(self._channel, self._position, max(self._limit, self._position), length))

    def _arm(self, delay: float) -> None:
        if self._alarm is None and not self._closed:
            self._alarm = self._timers.call_later(delay, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self._changed(self)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
