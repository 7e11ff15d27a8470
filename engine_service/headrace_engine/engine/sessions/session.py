"""A session: everything that one client or gateway reads, told step by step."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from headrace_proto.pure.limits import DEFAULT_WINDOW, LEAVE_SECONDS, PING_INTERVAL, PING_TIMEOUT
from headrace_proto.pure.shares import Shares
from headrace_proto.pure.used_numbers import UsedNumbers

from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.sessions.load import LoadWatch
from headrace_engine.engine.sessions.session_channels import Channel, Place, Refused, Timers, check_attach
from headrace_engine.engine.sessions.session_reader import Reader
from headrace_engine.engine.sessions.session_update import UPDATE_BYTES, SessionUpdate
from headrace_engine.errors import HeadraceError, ResourceExhausted, Unavailable

CHANNELS_AT_ONCE = 512
"""Channels of which one update tells: some milliseconds of work, between which others have turns."""

LOAD_INTERVAL = 0.1
"""Seconds between two words about load."""


class EngineSession:
    """Channels, and what is new on them.

    Logs mark the channels that follow them; one event wakes `next`, which then asks the marked channels for news. So a
    step costs one wake-up however many tokens it brought, and a session that is drained slowly is told more at a time.

    Args:
        find: the request of a handle and an owner; raises NotFound.
        load: tells what models do, to sessions that want it.
        closed: called by `close`.
        shares: what all sessions read.
        update_bytes: bytes that an update is filled up to.
    """

    def __init__(
        self,
        find: Callable[[str, str], Request],
        load: LoadWatch,
        timers: Timers,
        closed: Callable[[EngineSession], None],
        shares: Shares[EngineSession],
        update_bytes: int = UPDATE_BYTES,
    ) -> None:
        self._find, self._load, self._timers, self._closed = find, load, timers, closed
        self._shares = shares
        self._update_bytes = update_bytes
        self._numbers = UsedNumbers()
        self._channels: dict[int, Channel] = {}
        self._news: OrderedDict[Channel, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._opening = False
        self._pong: int | None = None
        self._failure: BaseException | None = None
        self._left = self._drained = self._ending = False
        self._heard = timers.time()
        self._silence_alarm: Any = timers.call_later(PING_TIMEOUT, self._check_silence)
        self._load_alarm: Any = None
        self._leave_alarm: Any = None

    # What the client says.

    def open(self, *, load: bool) -> None:
        """Begin; with or without load figures."""
        self._opening = True
        self._wake.set()
        if load:
            self._watch_load()

    def heard(self) -> None:
        """The client said something."""
        self._heard = self._timers.time()

    def attach(self, place: Place, from_position: int, window: int | None, owner: str, path: str) -> None:
        """Read a sequence from a position on. What is wrong with the handle is told on the channel.

        Args:
            window: tokens beyond the acknowledged position; None: DEFAULT_WINDOW.
            path: of the attach in its message.

        Raises:
            InvalidArgument: the channel number is 0 or was used, there are too many, or the handle is none.
        """
        check_attach(place, path, self._numbers, len(self._channels))
        window = DEFAULT_WINDOW if window is None else window
        channel: Channel
        try:
            request = self._find(place.handle, owner)
            self._check_share()
            channel = Reader(place, request, from_position, window, self._mark, self._timers)
        except HeadraceError as error:
            channel = Refused(place, error)
        self._add(channel)

    def detach(self, number: int) -> None:
        """Read a channel no more. One that is unknown may have ended just now."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()
            self._news.pop(channel, None)
            self._shares.give_back(self)

    def ack(self, number: int, position: int, window: int | None, path: str) -> None:
        """A channel was read up to a position. One that is unknown may have ended just now.

        Raises:
            InvalidArgument: the position is none that its reader can be at.
        """
        channel = self._channels.get(number)
        if channel is not None:
            channel.ack(position, window, path)

    def ping(self, number: int) -> None:
        """Answer with this number, whatever else there is to tell. The newest ping stands for those before it."""
        self._pong = number
        self._wake.set()

    def leave(self) -> None:
        """The client says nothing more: `next` tells what is there, and then None."""
        for channel in self._channels.values():
            channel.close()
        self._left = True
        self._wake.set()

    # What happens to it.

    def lose(self, number: int, error: HeadraceError) -> None:
        """What a channel told could not be passed on: it ends with an error, and touches no other."""
        channel = self._channels.get(number)
        if channel is not None:
            self.detach(number)
            self._add(Refused(channel.place, error))

    def fail(self, error: BaseException) -> None:
        """Let `next` raise an error."""
        self._failure = self._failure or error
        self._wake.set()

    def drain(self) -> None:
        """The engine goes away, and no sequence runs any more: `next` tells what is left, and that this was all.

        When the client has left then, or LEAVE_SECONDS has passed, `next` raises Unavailable.
        """
        self._drained = True
        self._wake.set()

    def close(self) -> None:
        """Give everything back."""
        self.leave()
        self._shares.give_back(self, len(self._channels))
        self._channels.clear()
        self._news.clear()
        for alarm in (self._silence_alarm, self._load_alarm, self._leave_alarm):
            if alarm is not None:
                alarm.cancel()
        self._closed(self)

    # What it tells.

    async def next(self) -> SessionUpdate | None:
        """Wait for news, and tell all of it at once as far as one update goes. None: the client left.

        Raises:
            InvalidArgument: the client broke the rules of the stream.
            Unavailable: the client was silent for too long, or the engine is gone.
        """
        while True:
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            update = self._collect()
            if update.size:
                return update
            if self._left and self._ending:
                raise Unavailable("the engine is shutting down", retry_after=1.0)
            if self._left:
                return None
            await self._wake.wait()

    def _check_share(self) -> None:
        if not self._shares.has_room(self):
            text = self._shares.refusal(self, "sequences", "this session reads")
            raise ResourceExhausted(f"{text}: detach some, or try again later", retry_after=1.0)

    def _add(self, channel: Channel) -> None:
        self._channels[channel.place.channel] = channel
        self._shares.take(self)
        self._mark(channel)

    def _mark(self, channel: Channel) -> None:
        self._news[channel] = None
        self._wake.set()

    def _collect(self) -> SessionUpdate:
        update = SessionUpdate(self._update_bytes)
        self._tell_own(update)
        for _ in range(min(CHANNELS_AT_ONCE, len(self._news))):
            if update.size >= update.limit:
                break
            channel, _ = self._news.popitem(last=False)
            if channel.tell(update):
                self._news[channel] = None  # What did not fit goes behind the others.
                break
        for failure in update.errors:
            self.detach(failure.channel)
        leaving = self._drained and not (self._ending or self._left)
        if leaving and all(channel.done for channel in self._channels.values()):
            self._end(update)
        return update

    def _end(self, update: SessionUpdate) -> None:
        self._ending = True
        self._leave_alarm = self._timers.call_later(LEAVE_SECONDS, self.leave)
        update.close()

    def _tell_own(self, update: SessionUpdate) -> None:
        if self._opening:
            self._opening = False
            update.open()
        if self._pong is not None:
            update.answer(self._pong)
            self._pong = None
        while self._load.pending and update.room > 0:
            update.load(self._load.take())

    def _check_silence(self) -> None:
        left = self._heard + PING_TIMEOUT - self._timers.time()
        if left <= 0:
            text = f"no message came for {PING_TIMEOUT:g} s, pings are due every {PING_INTERVAL:g} s: open a new one"
            self.fail(Unavailable(text, reason="SESSION_SILENT", retry_after=0.1))
        else:
            self._silence_alarm = self._timers.call_later(left, self._check_silence)

    def _watch_load(self) -> None:
        if self._load.look():
            self._wake.set()
        self._load_alarm = self._timers.call_later(LOAD_INTERVAL, self._watch_load)
