"""News of a session beside its channels: its opening, answers to pings, load, cache events, and what owners use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from headrace_engine.engine.sessions.cache_watch import CacheWatch
from headrace_engine.engine.sessions.load import LoadWatch
from headrace_engine.engine.sessions.session_channels import Timers
from headrace_engine.engine.sessions.session_update import KEY_SIZE, SessionUpdate
from headrace_engine.engine.sessions.usage_watch import UsageWatch

LOAD_INTERVAL = 0.1
"""Seconds between two load reports, or two looks for cache events and for what owners use."""

KEYS_AT_ONCE = 8192
"""Keys of cached blocks in one update, at most."""


class Watches(NamedTuple):
    """Reports that a gateway may ask a session for, besides results.

    Attributes:
        load: changes of the models' load.
        cache: changes of the prefix caches.
        usage: changes of what owners use.
    """

    load: LoadWatch
    cache: CacheWatch
    usage: UsageWatch


class SessionNews:
    """Reports that a session has to send, of itself and of its engine.

    Args:
        watches: what sessions of gateways may request besides results.
        wake: called when there is something to send.
    """

    def __init__(self, watches: Watches, timers: Timers, wake: Callable[[], None]) -> None:
        self._watches = watches
        self._timers = timers
        self._wake = wake
        self._opening = False
        self._pong: int | None = None
        self._timer: Any = None

    def open(self, *, load: bool, cache_events: bool, usage: bool) -> None:
        """Announce the session, and follow what it requests."""
        self._opening = True
        self._wake()
        watches = self._watches
        wanted = ((watches.load.poll, load), (watches.cache.poll, cache_events), (watches.usage.poll, usage))
        watched = [poll for poll, asked in wanted if asked]
        if watched:
            self._watch(watched)

    def answer(self, number: int) -> None:
        """Answer a ping. Only the newest one is answered."""
        self._pong = number
        self._wake()

    def write_to(self, update: SessionUpdate) -> None:
        """Add what there is to an update, as far as it fits."""
        if self._opening:
            self._opening = False
            update.open()
        if self._pong is not None:
            update.answer(self._pong)
            self._pong = None
        load, cache, usage = self._watches.load, self._watches.cache, self._watches.usage
        while load.pending and update.space > 0:
            update.load(load.take())
        while usage.pending and update.space > 0:
            update.report_usage(usage.take())
        if cache.pending and (keys := min(KEYS_AT_ONCE, update.space // (2 * KEY_SIZE))) > 0:
            update.report_cache(*cache.take(keys))

    def close(self) -> None:
        """Follow nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, watched: list[Callable[[], bool]]) -> None:
        for poll in watched:
            if poll():
                self._wake()
        self._timer = self._timers.call_later(LOAD_INTERVAL, partial(self._watch, watched))
