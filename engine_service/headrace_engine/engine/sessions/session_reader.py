"""One channel of a session: a reader of one sequence's log, with a position and a window."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.results.log_contents import LogContents
from headrace_engine.engine.sessions.session_channels import Attachment, Timers
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
"""Maximum number of readers of one sequence in all sessions, since each token is sent to every one of them. A gateway
that resumes a reader has two for a moment."""

WINDOW_INTERVAL = 1.0
"""Seconds between two reports of a window that stays closed."""


class Reader:
    """Reads one sequence for one channel. Nothing is queued: it reads the log from its position when asked for news.

    It counts as a reader of the request, which holds its lease, until `close`.

    Args:
        window: maximum number of tokens that may be sent beyond the acknowledged position.
        changed: called with the reader whenever it may have news.

    Raises:
        NotFound: there is no such sequence.
        OutOfRange: the position is outside the log.
        ResourceExhausted: the sequence has MAX_FOLLOWERS already.
    """

    share = 1

    def __init__(
        self,
        attachment: Attachment,
        request: Request,
        from_position: int,
        window: int,
        changed: Callable[[Reader], None],
        timers: Timers,
    ) -> None:
        self._log = request.sequence(attachment.index).log
        self._log.check_position(from_position)
        if self._log.followers >= MAX_FOLLOWERS:
            text = f"this sequence has {MAX_FOLLOWERS} readers in sessions, the maximum"
            raise ResourceExhausted(f"{text}: detach some, or try again later", retry_after=1.0)
        self.attachment, self._channel, self._request = attachment, attachment.channel, request
        self._position = self._acked = from_position
        self._window = self._open_window = window
        self._limit = from_position + window
        self._token_bytes = self._log.options.message_bytes
        self._changed, self._timers = changed, timers
        self._attached = self._ended = self._closed = False
        self._status: GenerateStatus | None = None
        self._prefix: PrefixReuse | None = None
        self._sent_closed = False
        self._sent_length = 0
        self._sent_time = 0.0
        self._timer: Any = None
        # Last: a reader that cannot be made holds no lease, and follows no log.
        request.arrive()
        self._log.follow(self)

    @property
    def done(self) -> bool:
        """True if the end and all tokens before it were sent."""
        return self._ended and self._position == len(self._log)

    def touch(self) -> None:
        """Handle a change of the log. A closed window is left to the timer, to keep the cost of each token low."""
        log = self._log
        waits = self._timer is not None and self._position >= self._limit and log.end is None and not log.released
        if not waits or self._status is not _GENERATING or log.prefix is not self._prefix:
            self._changed(self)

    def close(self) -> None:
        """Stop following the log, and stop counting as a reader of the request."""
        # Called twice if the client leaves before the session ends; the request counts it once.
        if not self._closed:
            self._closed = True
            self._log.unfollow(self)
            self._request.leave()
            self._disarm()

    def ack(self, position: int, window: int | None, path: str) -> None:
        """Move and optionally resize the window. Without a size, a window that was closed by size 0 reopens as it was.

        Args:
            path: path of the ack in its message.

        Raises:
            InvalidArgument: the position is before the last acknowledged one, or was not sent yet.
        """
        if not self._acked <= position <= self._position:
            allowed = f"allowed: {self._acked} to {self._position}, from the last ack to what was sent"
            raise InvalidArgument.field(f"{path}.position", f"= {position} is out of range; {allowed}")
        self._acked = position
        self._window = self._open_window if window is None else window
        self._open_window = self._window or self._open_window
        self._limit = position + self._window
        self._sent_closed = self._sent_closed and self._limit <= self._position
        self._changed(self)

    def write_to(self, update: SessionUpdate) -> bool:
        """Add news to an update: the attach, tokens, status, end and window, in this order."""
        log = self._log
        if log.released:
            self._refuse(update)
            return False
        if not self._attached:
            self._write_attached(update)
        contents = log.contents
        stop = min(len(contents), self._limit)
        if self._position < stop:
            self._write_tokens(update, contents, stop)
        if self._status is not _GENERATING or contents.prefix is not self._prefix:
            self._write_status(update)
        if self._position < stop:
            return True
        if contents.end is not None and not self._ended:
            self._ended = True
            update.end(SequenceEnd(self._channel, contents.end))
        if self._position >= self._limit:
            self._write_window(update)
        return False

    def _refuse(self, update: SessionUpdate) -> None:
        error = NotFound("the request was released", metadata={"handle": self.attachment.handle})
        update.refuse(HandleError(self._channel, self.attachment.handle, self.attachment.index, error))

    def _write_attached(self, update: SessionUpdate) -> None:
        log = self._log
        self._attached, self._status, self._prefix = True, log.status, log.prefix
        before = log.checksum_before(self._position)
        update.attach(Attached(self._channel, self._position, before, log.status, len(log), log.prefix))

    def _write_tokens(self, update: SessionUpdate, contents: LogContents, stop: int) -> None:
        start, rows = self._position, update.rows
        stop, size = contents.fitting(start, stop, update.limit - update.size - ROW_BYTES, self._token_bytes)
        if stop == start:
            if rows.channels:
                return
            # A token that is larger than an update is sent alone.
            stop, size = contents.fitting(start, start + 1, sys.maxsize, self._token_bytes)
        ids, text, checksum, details = contents.columns(start, stop)
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

    def _write_status(self, update: SessionUpdate) -> None:
        """Add the newest status; skipped ones are not sent. Prefix reuse is always sent, before the end."""
        log = self._log
        status = log.live_status
        if log.prefix == self._prefix and (log.end is not None or status is self._status):
            return
        self._status, self._prefix = status, log.prefix
        update.change(StatusChange(self._channel, status, log.prefix))

    def _write_window(self, update: SessionUpdate) -> None:
        length = len(self._log)
        if self._sent_closed and (length == self._sent_length or self._ended):
            return
        if self._position == length and self._log.end is not None:
            return  # No token waits, and none will come.
        now = self._timers.time()
        due = self._sent_time + WINDOW_INTERVAL
        if self._sent_closed and now < due:
            self._arm(due - now)
            return
        self._sent_closed, self._sent_length, self._sent_time = True, length, now
        update.hold(WindowState(self._channel, self._position, max(self._limit, self._position), length))

    def _arm(self, delay: float) -> None:
        # One that is closed may still be written, but nobody would cancel its timer.
        if self._timer is None and not self._closed:
            self._timer = self._timers.call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._changed(self)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
