"""The requests of an engine, by handle and by request_id."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from typing import TypeVar

from headrace_proto.pure.log_budget import LogBudget

from headrace_engine.engine.requests.leases import Leases
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.requests.start_keys import Key, StartKeys, was_released
from headrace_engine.engine.requests.timer_queue import TimerQueue
from headrace_engine.engine.results.budget import ResultBudget
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.errors import NotFound
from headrace_engine.result_types import FinishReason

G = TypeVar("G")
K = TypeVar("K")

_log = logging.getLogger(__name__)

_HANDLE = re.compile(r".*/(?P<instance>[0-9a-f]{16})/(?P<request>[0-9a-f]{32})", re.DOTALL)


class RequestRegistry:
    """All requests of one engine instance.

    Args:
        engine: the engine's name, first part of its handles.
        instance_id: second part, 16 hexadecimal digits; differs in handles of an earlier start of the engine.

    Attributes:
        keys: keys of the starts with a request_id.
        leases: ends and releases requests without readers.
        deadlines: ends requests at their deadlines.
        budget: budget of the logs, in bytes.
    """

    def __init__(self, engine: str, instance_id: str, clock: Clock) -> None:
        self._prefix = f"{engine}/{instance_id}/"
        self._instance_id = instance_id
        self.keys = StartKeys(clock)
        self.leases = Leases(clock, self._expire)
        self.deadlines: TimerQueue[Request] = TimerQueue(clock, _end_late)
        self.budget = ResultBudget()
        self._requests: dict[str, Request] = {}
        self._owned: dict[str, dict[str, Request]] = {}
        self._by_id: dict[tuple[str, str], dict[int, Request]] = {}
        self._serial = 0
        self._lines = LogBudget()

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))

    def new_handle(self) -> str:
        """Return an unguessable handle."""
        return self._prefix + secrets.token_hex(16)

    def new_serial(self) -> int:
        """Return a number that orders requests by arrival."""
        self._serial += 1
        return self._serial

    def add(self, request: Request) -> None:
        """Add a request. It is kept until its lease expires, and ended at its deadline."""
        accepted, handle = request.accepted, _id(request.accepted.handle)
        self._requests[handle] = request
        self._owned.setdefault(request.owner, {})[handle] = request
        self._by_id.setdefault((request.owner, accepted.request_id), {})[accepted.handover] = request
        self.leases.watch(request)
        if request.deadline is not None:
            self.deadlines.set(request.serial, request.deadline, request)

    def close(self) -> None:
        """Stop all timers: no lease expires, and no deadline ends a request any more."""
        self.leases.close()
        self.deadlines.close()

    def find(self, handle: str, owner: str) -> Request:
        """Return the request of a handle; the first part of the handle is ignored.

        Raises:
            NotFound: ENGINE_LOST if the handle is of another instance; UNKNOWN_REQUEST if it is unknown, released, or
                of another owner.
        """
        request = self.find_or_none(handle, owner)
        if request is not None:
            return request
        parts = _HANDLE.fullmatch(handle)
        if parts is not None and parts["instance"] != self._instance_id:
            lost = "the engine instance that held it is gone, and its results with it; send the request again"
            text = f"handle {handle}: {lost}"
            raise NotFound(text, reason="ENGINE_LOST", metadata={"handle": handle})
        text = f"no request has the handle {handle!r}: it was released, is another owner's, or never was"
        raise NotFound(text, metadata={"handle": handle})

    def find_or_none(self, handle: str, owner: str) -> Request | None:
        """Return the request of a handle, or None where `find` would raise."""
        parts = _HANDLE.fullmatch(handle)
        if parts is None or parts["instance"] != self._instance_id:
            return None
        request = self._requests.get(parts["request"])
        return request if request is not None and request.owner == owner else None

    def find_by_id(self, request_id: str, owner: str) -> Request:
        """Return the request with this request_id; of several hand-overs the latest.

        Raises:
            NotFound: there is none. If it was released and its key is remembered, the metadata has its "handle" and
                "handover": a start with this key belongs here.
        """
        found = self._by_id.get((owner, request_id))
        if not found:
            raise self._no_request(request_id, owner)
        return found[max(found)]

    async def find_either(self, handle: str | None, request_id: str | None, owner: str) -> Request:
        """Return the request of a handle or, without one, of a request_id; waits for the end of starts in progress.

        Raises:
            NotFound: as `find` and `find_by_id`.
        """
        if handle is not None:
            return self.find(handle, owner)
        await self.keys.settle(owner, request_id or "")
        return self.find_by_id(request_id or "", owner)

    def of_owner(self, owner: str, model_name: str = "") -> list[Request]:
        """Return the owner's requests, to one model or ("") to all, in order of arrival."""
        owned = self._owned.get(owner, {}).values()
        return [request for request in owned if model_name in ("", request.accepted.model_name)]

    def release(self, request: Request) -> None:
        """Remove a request and free its logs; waiting readers raise NotFound."""
        self._forget(request)
        self.keys.release(Key(request.owner, request.accepted.request_id, request.accepted.handover))
        request.released = True
        self.leases.forget(request)
        self.deadlines.drop(request.serial)
        if request.prompt is not None:
            request.prompt.release()
        for sequence in request.sequences:
            sequence.release()

    def _forget(self, request: Request) -> None:
        accepted, handle = request.accepted, _id(request.accepted.handle)
        del self._requests[handle]
        _drop(self._owned, request.owner, handle)
        _drop(self._by_id, (request.owner, accepted.request_id), accepted.handover)

    def _no_request(self, request_id: str, owner: str) -> NotFound:
        released = self.keys.latest(owner, request_id)
        if released is None:
            return NotFound(f"no request has the id {request_id!r}: it was released, is another owner's, or never was")
        return was_released(released, request_id)

    def _expire(self, request: Request) -> None:
        """Stop a request whose lease expired while it ran; release one that has ended."""
        if (omitted := self._lines.spend("lease_expired", party=request.owner)) is not None:
            _log.info("lease_expired: %s, ended: %s, omitted: %d", request.accepted.handle, request.ended, omitted)
        if request.ended:
            self.release(request)
        else:
            request.end(FinishReason.LEASE_EXPIRED)


def _end_late(request: Request, now: float) -> None:
    request.end(FinishReason.DEADLINE)


def _drop(groups: dict[G, dict[K, Request]], group: G, key: K) -> None:
    """Remove a request from its group, and an empty group."""
    del groups[group][key]
    if not groups[group]:
        del groups[group]


def _id(handle: str) -> str:
    return handle.rpartition("/")[2]
