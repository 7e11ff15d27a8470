"""All sessions of one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from headrace_proto.pure.shares import Shares

from headrace_engine.engine.cores.cached_blocks import CachedBlocks
from headrace_engine.engine.requests.open_streams import OpenStreams
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.sessions.cache_watch import CacheWatch
from headrace_engine.engine.sessions.load import LoadWatch
from headrace_engine.engine.sessions.session import EngineSession
from headrace_engine.engine.sessions.session_channels import Timers
from headrace_engine.engine.sessions.session_news import Watches
from headrace_engine.engine.sessions.session_update import ModelLoad
from headrace_engine.engine.sessions.usage_watch import ReadUsage, UsageWatch

MAX_READERS = 262_144
"""Maximum number of sequences that all sessions together read at a time."""


class Sessions:
    """Opens sessions, and ends them when the engine shuts down.

    Args:
        find: returns the request of a handle and an owner; raises NotFound.
        loads: returns the load of all models.
        cached: returns the cached blocks of each model.
        usage: returns what owners use.
        timers: clock and timers; None: the event loop's.

    Attributes:
        streams: counts open sessions and other streams of results.
    """

    def __init__(
        self,
        find: Callable[[str, str], Request],
        loads: Callable[[], Iterable[ModelLoad]],
        cached: Callable[[], Mapping[str, CachedBlocks]],
        usage: ReadUsage,
        timers: Timers | None = None,
    ) -> None:
        self._find, self._loads, self._cached, self._usage, self._timers = find, loads, cached, usage, timers
        self.streams = OpenStreams()
        self._open: set[EngineSession] = set()
        self._shares: Shares[EngineSession] = Shares(MAX_READERS)
        self._drained = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> EngineSession:
        """Open a session. The caller owns it and must close it."""
        timers = self._timers or asyncio.get_running_loop()
        watches = Watches(LoadWatch(self._loads), CacheWatch(self._cached), UsageWatch(self._usage))
        session = EngineSession(self._find, watches, timers, self._closed, self._shares)
        self._open.add(session)
        self.streams.begin()
        if self._drained:
            session.drain()
        return session

    def drain(self) -> None:
        """Handle the shutdown of the engine, once no sequence runs: sessions end when everything was sent."""
        self._drained = True
        for session in self._open:
            session.drain()

    def _closed(self, session: EngineSession) -> None:
        if session in self._open:
            self._open.remove(session)
            self.streams.end()
