"""What a client has started and is reading."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

from headrace_proto.v1 import request_pb2

from headrace._streaming.feed import BaseFeed
from headrace._streaming.reader import SequenceReader


class OpenRequests:
    """The requests that a client started and did not release, and the readers of its queues.

    A running request stays attached for as long as its client lives, also when its queue was dropped: the caller may
    have kept the handle, and must not find that the lease ran out.
    """

    def __init__(self) -> None:
        self._started: dict[str, None] = {}
        self._feeds: weakref.WeakSet[BaseFeed] = weakref.WeakSet()
        self._orphans: weakref.WeakSet[BaseFeed] = weakref.WeakSet()
        self._client_lives = True
        self._lock = threading.Lock()

    def started(self, handle: str) -> None:
        """A request was started here."""
        with self._lock:
            self._started[handle] = None

    def unreleased(self) -> list[str]:
        """Handles of what was started here and not released, oldest first."""
        with self._lock:
            return list(self._started)

    def reads(self, feed: BaseFeed) -> None:
        """A queue reads a sequence."""
        with self._lock:
            self._feeds.add(feed)

    def orphaned(self, feed: BaseFeed) -> None:
        """The first queue of a request was dropped: it stays attached until its end."""
        with self._lock:
            keep = self._client_lives and feed.handle in self._started
            if keep:
                self._orphans.add(feed)
        if keep:
            feed.abandon()
        else:
            feed.stop()

    def client_dropped(self) -> None:
        """Nobody can ask for a request by its handle any more; queues that somebody has go on."""
        with self._lock:
            self._client_lives = False
            orphans = list(self._orphans)
        for feed in orphans:
            feed.stop()

    def observe(self, handle: str, sequences: Iterable[request_pb2.SequenceInfo]) -> None:
        """Tells the queues of a request what a call answered about its sequences."""
        by_index = {info.index: info for info in sequences}
        for feed in self.feeds(handle):
            if feed.index in by_index:
                feed.observe(by_index[feed.index])

    def drained(self, handle: str) -> bool:
        """Whether a sequence of a request was ended because its engine goes away, as far as its queues know."""
        return any(feed.ask(_is_drained) for feed in self.feeds(handle))

    def released(self, handle: str) -> None:
        """A request was released: its queues raise from now on."""
        with self._lock:
            self._started.pop(handle, None)
        for feed in self.feeds(handle):
            feed.release()

    def feeds(self, handle: str | None = None) -> list[BaseFeed]:
        """The readers of a request; None: of all."""
        with self._lock:
            return [feed for feed in self._feeds if handle in (None, feed.handle)]


def _is_drained(reader: SequenceReader) -> bool:
    return reader.end is not None and reader.end.finish_reason == request_pb2.FINISH_REASON_DRAINED
