"""What a client has started and is reading."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

from headrace.pump import Pump
from headrace.v1 import request_pb2


class OpenRequests:
    """The requests that a client started and did not release, and the pumps of its queues.

    A request stays attached for as long as its client lives, also when its queue was dropped: the caller may have kept
    the handle, and must not find that the lease ran out.
    """

    def __init__(self) -> None:
        self._started: dict[str, None] = {}
        self._pumps: weakref.WeakSet[Pump] = weakref.WeakSet()
        self._orphans: list[Pump] = []
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

    def reads(self, pump: Pump) -> None:
        """A queue reads a sequence."""
        with self._lock:
            self._pumps.add(pump)

    def orphaned(self, pump: Pump) -> None:
        """The first queue of a request was dropped."""
        with self._lock:
            if self._client_lives and pump.handle in self._started:
                self._orphans = [*(one for one in self._orphans if not one.over), pump]
                return
        pump.stop()

    def client_dropped(self) -> None:
        """Nobody can ask for a request by its handle any more; queues that somebody has go on."""
        with self._lock:
            self._client_lives = False
            orphans, self._orphans = self._orphans, []
        for pump in orphans:
            pump.stop()

    def observe(self, handle: str, sequences: Iterable[request_pb2.SequenceInfo]) -> None:
        """Tells the queues of a request what a call answered about its sequences."""
        by_index = {info.index: info for info in sequences}
        for pump in self.pumps(handle):
            if pump.index in by_index:
                pump.observe(by_index[pump.index])

    def released(self, handle: str) -> None:
        """A request was released: its queues raise from now on."""
        with self._lock:
            self._started.pop(handle, None)
        for pump in self.pumps(handle):
            pump.release()

    def pumps(self, handle: str | None = None) -> list[Pump]:
        """The pumps of a request; None: of all."""
        with self._lock:
            return [pump for pump in self._pumps if handle in (None, pump.handle)]
