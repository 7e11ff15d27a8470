"""The requests that a client has started, and the sequences that it reads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

from headrace_proto.v1 import request_pb2

from headrace._streaming.feed import BaseFeed
from headrace._streaming.handover import Handover
from headrace._streaming.reader import SequenceReader


class OpenRequests:
    """A thread-safe registry of started, unreleased requests and of the feeds of queues.

    Queues own their feeds. An orphan is a feed whose queue was dropped: it stays attached while the client exists, so
    that the lease does not expire while the caller may still use the handle.
    """

    def __init__(self) -> None:
        self._started: dict[str, None] = {}
        self._moved: dict[str, str] = {}
        self._known_as: dict[str, str] = {}
        self._handovers: weakref.WeakValueDictionary[str, Handover] = weakref.WeakValueDictionary()
        self._feeds: weakref.WeakSet[BaseFeed] = weakref.WeakSet()
        self._orphans: weakref.WeakSet[BaseFeed] = weakref.WeakSet()
        self._client_lives = True
        self._lock = threading.Lock()

    def started(self, handle: str) -> None:
        """Add a request that this client started."""
        with self._lock:
            self._started[handle] = None

    def follow(self, handover: Handover) -> None:
        """Add what moves a request to another engine."""
        with self._lock:
            self._handovers[handover.handle] = handover

    def moving(self, handle: str) -> bool:
        """Return whether a request is on its way to another engine."""
        with self._lock:
            handover = self._handovers.get(handle)
        return handover is not None and handover.moving

    def holds(self, handle: str) -> bool:
        """Return whether this client started a request and has not released it."""
        with self._lock:
            return handle in self._started

    def moved(self, handle: str, current: str) -> None:
        """Record under which handle a request runs now, unless it was released; `handle` is its caller's."""
        with self._lock:
            if handle in self._started:
                self._known_as.pop(self._moved.get(handle, ""), None)
                self._moved[handle] = current
                self._known_as[current] = handle

    def current(self, handle: str) -> str:
        """Return the handle under which a request runs now; `handle` is its caller's."""
        with self._lock:
            return self._moved.get(handle, handle)

    def known_as(self, current: str) -> str:
        """Return the handle by which the caller knows a request that runs under `current`."""
        with self._lock:
            return self._known_as.get(current, current)

    def unreleased(self) -> list[str]:
        """Return the handles of started, unreleased requests, oldest first."""
        with self._lock:
            return list(self._started)

    def reads(self, feed: BaseFeed) -> None:
        """Add the feed of a queue."""
        with self._lock:
            self._feeds.add(feed)

    def orphaned(self, feed: BaseFeed) -> None:
        """Keep the feed of a request's first queue attached, after the queue was dropped, until the sequence ends."""
        with self._lock:
            keep = self._client_lives and feed.handle in self._started
            if keep:
                self._orphans.add(feed)
        if keep:
            feed.abandon()
        else:
            feed.stop()

    def client_dropped(self) -> None:
        """Stop orphans, since a dropped client cannot use handles any more; queues that exist go on."""
        with self._lock:
            self._client_lives = False
            orphans = list(self._orphans)
        for feed in orphans:
            feed.stop()

    def observe(self, handle: str, sequences: Iterable[request_pb2.SequenceInfo]) -> None:
        """Update the queues of a request with the states of its sequences."""
        by_index = {info.index: info for info in sequences}
        for feed in self.feeds(handle):
            if feed.index in by_index:
                feed.observe(by_index[feed.index])

    def drained(self, handle: str) -> bool:
        """Return whether a sequence of a request is known to have ended because its engine shuts down."""
        return any(feed.query(_is_drained) for feed in self.feeds(handle))

    def released(self, handle: str) -> None:
        """Remove a released request; its queues raise RequestReleasedError from now on."""
        with self._lock:
            self._started.pop(handle, None)
            self._known_as.pop(self._moved.pop(handle, ""), None)
        for feed in self.feeds(handle):
            feed.release()

    def feeds(self, handle: str | None = None) -> list[BaseFeed]:
        """Return the feeds of a request; None: all feeds."""
        with self._lock:
            return [feed for feed in self._feeds if handle in (None, feed.handle)]


def _is_drained(reader: SequenceReader) -> bool:
    return reader.end is not None and reader.end.finish_reason == request_pb2.FINISH_REASON_DRAINED
