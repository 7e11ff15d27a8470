"""A session: everything that one client or gateway reads over one stream."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from headrace_proto.pure.limits import DEFAULT_WINDOW, LEAVE_SECONDS, PING_INTERVAL, PING_TIMEOUT
from headrace_proto.pure.shares import Shares
from headrace_proto.pure.used_numbers import UsedNumbers

from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.sessions.session_channels import Attachment, Channel, Refused, Timers, check_attach
from headrace_engine.engine.sessions.session_news import SessionNews, Watches
from headrace_engine.engine.sessions.session_reader import Reader
from headrace_engine.engine.sessions.session_update import UPDATE_BYTES, SessionUpdate
from headrace_engine.errors import HeadraceError, ResourceExhausted, Unavailable

CHANNELS_AT_ONCE = 512
"""Maximum number of channels in one update: some milliseconds of work, after which other tasks run."""

FACTS_AT_ONCE = 64
"""Maximum number of facts in one update, each of which takes as long as the rows of many channels."""


class EngineSession:
    """The channels of a session, and their pending news.

    Logs mark the channels that follow them; one event wakes `next`, which collects news from the marked channels. So a
    step costs one wake-up however many tokens it produced, and a slow client gets larger updates instead of a queue.

    The session owns its channels: each is registered with its log and holds one of the shared reader slots,
    both given back by `detach` or `close`. The logs belong to the requests.

    Args:
        find: returns the request of a handle and an owner; raises NotFound.
        watches: what sessions of gateways may request besides.
        closed: called by `close`.
        shares: reader slots of all sessions.
        update_bytes: maximum size of an update, in bytes.
    """

    def __init__(
        self,
        find: Callable[[str, str], Request],
        watches: Watches,
        timers: Timers,
        closed: Callable[[EngineSession], None],
        shares: Shares[EngineSession],
        update_bytes: int = UPDATE_BYTES,
    ) -> None:
        self._find, self._timers, self._closed = find, timers, closed
        self._shares = shares
        self._update_bytes = update_bytes
        self._numbers = UsedNumbers()
        self._channels: dict[int, Channel] = {}
        self._news: OrderedDict[Channel, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._own = SessionNews(watches, timers, self._wake.set)
        self._failure: BaseException | None = None
        self._left = self._drained = self._ending = False
        self._heard = timers.time()
        self._silence_timer: Any = timers.call_later(PING_TIMEOUT, self._check_silence)
        self._leave_timer: Any = None

    # Messages of the client.

    def open(self, *, load: bool = False, cache_events: bool = False, usage: bool = False) -> None:
        """Begin the session, with or without load reports, cache events, and the use of owners."""
        self._own.open(load=load, cache_events=cache_events, usage=usage)

    def heard(self) -> None:
        """Record that a message of the client arrived."""
        self._heard = self._timers.time()

    def attach(self, attachment: Attachment, from_position: int, window: int | None, owner: str, path: str) -> None:
        """Read a sequence from a position on. A wrong handle is reported on the channel.

        Args:
            window: maximum number of unacknowledged tokens; None: DEFAULT_WINDOW.
            path: path of the attach in its message.

        Raises:
            InvalidArgument: the channel number is 0 or was used, there are too many, or the handle is too long.
        """
        check_attach(attachment, path, self._numbers, len(self._channels))
        window = DEFAULT_WINDOW if window is None else window
        try:
            request = self._find(attachment.handle, owner)
            self._check_share()
            self._add(Reader(attachment, request, from_position, window, self._mark, self._timers))
        except HeadraceError as error:
            self._add(Refused(attachment, error))

    def detach(self, number: int) -> None:
        """Stop reading a channel. An unknown one is ignored: it may have just ended."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()
            self._news.pop(channel, None)
            self._shares.give_back(self, channel.share)

    def ack(self, number: int, position: int, window: int | None, path: str) -> None:
        """Acknowledge a channel up to a position. An unknown one is ignored: it may have just ended.

        Raises:
            InvalidArgument: the position was not sent, or is before the last one.
        """
        channel = self._channels.get(number)
        if channel is not None:
            channel.ack(position, window, path)

    def ping(self, number: int) -> None:
        """Answer a ping in the next update. Only the newest one is answered."""
        self._own.answer(number)

    def leave(self) -> None:
        """Handle the client's end of stream: `next` returns what is pending, then None."""
        for channel in self._channels.values():
            channel.close()
        self._left = True
        self._wake.set()

    # Events in the engine.

    def lose(self, number: int, error: HeadraceError) -> None:
        """End one channel with an error: its data could not be sent."""
        channel = self._channels.get(number)
        if channel is not None:
            self.detach(number)
            self._add(Refused(channel.attachment, error))

    def fail(self, error: BaseException) -> None:
        """Make `next` raise an error."""
        self._failure = self._failure or error
        self._wake.set()

    def drain(self) -> None:
        """Handle the shutdown of the engine, once no sequence runs: `next` returns what is left and a closing update.

        When the client has left, or LEAVE_SECONDS have passed, `next` raises Unavailable.
        """
        self._drained = True
        self._wake.set()

    def close(self) -> None:
        """Detach all channels and cancel all timers."""
        self.leave()
        # `leave` closed the channels, but kept them for their last news: now nobody reads these any more.
        self._shares.give_back(self, sum(channel.share for channel in self._channels.values()))
        self._channels.clear()
        self._news.clear()
        for timer in (self._silence_timer, self._leave_timer):
            if timer is not None:
                timer.cancel()
        self._own.close()
        self._closed(self)

    # Updates to the client.

    async def next(self) -> SessionUpdate | None:
        """Wait for news and return them as one update, as far as they fit. None: the client left.

        Raises:
            InvalidArgument: the client violated the protocol.
            Unavailable: the client was silent for too long, or the engine is gone.
        """
        while True:
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            update = self._collect()
            if update.size:
                return update
            if self._news:
                await asyncio.sleep(0)  # None of those channels had news; others may.
                continue
            if self._left and self._ending:
                raise Unavailable("the engine is shutting down", retry_after=1.0)
            if self._left:
                return None
            await self._wake.wait()

    def _check_share(self) -> None:
        if not self._shares.can_take(self):
            text = self._shares.refusal(self, "sequences", "this session reads")
            raise ResourceExhausted(f"{text}: detach some, or try again later", retry_after=1.0)

    def _add(self, channel: Channel) -> None:
        self._channels[channel.attachment.channel] = channel
        self._shares.take(self, channel.share)
        self._mark(channel)

    def _mark(self, channel: Channel) -> None:
        self._news[channel] = None
        self._wake.set()

    def _collect(self) -> SessionUpdate:
        update = SessionUpdate(self._update_bytes)
        self._own.write_to(update)
        for _ in range(min(CHANNELS_AT_ONCE, len(self._news))):
            if update.size >= update.limit or update.facts >= FACTS_AT_ONCE:
                break
            channel, _ = self._news.popitem(last=False)
            if channel.write_to(update):
                self._news[channel] = None  # The rest goes behind the other channels.
                break
        # The client is told in this update; of a failed channel nothing is left here.
        for failure in update.errors:
            self.detach(failure.channel)
        leaving = self._drained and not (self._ending or self._left)
        if leaving and all(channel.done for channel in self._channels.values()):
            self._end(update)
        return update

    def _end(self, update: SessionUpdate) -> None:
        self._ending = True
        self._leave_timer = self._timers.call_later(LEAVE_SECONDS, self.leave)
        update.close()

    def _check_silence(self) -> None:
        left = self._heard + PING_TIMEOUT - self._timers.time()
        if left <= 0:
            text = f"no message came for {PING_TIMEOUT:g} s, pings are due every {PING_INTERVAL:g} s: open a new one"
            self.fail(Unavailable(text, reason="SESSION_SILENT", retry_after=0.1))
        else:
            self._silence_timer = self._timers.call_later(left, self._check_silence)
