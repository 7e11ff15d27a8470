"""Requests by handle and by the id that their client chose."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from headrace_engine.engine.leases import Leases
from headrace_engine.engine.requests import Request
from headrace_engine.engine.result_room import ResultRoom
from headrace_engine.engine.statistics import Clock
from headrace_engine.errors import AlreadyExists, NotFound
from headrace_engine.request_types import AcceptedRequest
from headrace_engine.result_types import FinishReason

_log = logging.getLogger(__name__)

KEY_MEMORY = 600.0
"""Seconds after release for which the key of a request still answers a retry."""

_HANDLE = re.compile(r".*/(?P<instance>[0-9a-f]{16})/(?P<request>[0-9a-f]{32})", re.DOTALL)

Key = tuple[str, str, int]
"""Owner, request_id and hand-over: what makes a start idempotent."""


@dataclass(frozen=True, slots=True)
class _Start:
    """What is known of a start: its content, and its answer once there is one."""

    content: bytes
    answer: asyncio.Future[AcceptedRequest]


class RequestBook:
    """All requests of one engine instance.

    Args:
        engine: the engine's name, first part of its handles.
        instance_id: second part, 16 hexadecimal digits; tells handles of an earlier start of the engine apart.

    Attributes:
        leases: end and release requests that nobody is there for.
        room: what the logs take.
    """

    def __init__(self, engine: str, instance_id: str, clock: Clock) -> None:
        self._prefix = f"{engine}/{instance_id}/"
        self._instance_id = instance_id
        self._clock = clock
        self.leases = Leases(clock, self._expire)
        self.room = ResultRoom()
        self._requests: dict[str, Request] = {}
        self._starts: dict[Key, _Start] = {}
        self._released: deque[tuple[float, Key]] = deque()
        self._serial = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))

    def new_handle(self) -> str:
        """A handle that nobody can guess."""
        return self._prefix + secrets.token_hex(16)

    def new_serial(self) -> int:
        """A number that orders requests by arrival."""
        self._serial += 1
        return self._serial

    def add(self, request: Request) -> None:
        """Keep a request, as long as its lease runs."""
        self._requests[_id(request.accepted.handle)] = request
        self.leases.watch(request)

    def find(self, handle: str, owner: str) -> Request:
        """The request of a handle; the first part of the handle is not looked at.

        Raises:
            NotFound: ENGINE_LOST if another instance gave the handle; UNKNOWN_REQUEST if it is unknown, released, or
                of another owner.
        """
        request = self.find_or_none(handle, owner)
        if request is not None:
            return request
        parts = _HANDLE.fullmatch(handle)
        if parts is not None and parts["instance"] != self._instance_id:
            text = f"handle {handle}: the engine instance that held it is gone, and its results with it"
            raise NotFound(text, reason="ENGINE_LOST", metadata={"handle": handle})
        raise NotFound(f"no request has the handle {handle!r}: unknown or released", metadata={"handle": handle})

    def find_or_none(self, handle: str, owner: str) -> Request | None:
        """The request of a handle, or None where `find` would raise."""
        parts = _HANDLE.fullmatch(handle)
        if parts is None or parts["instance"] != self._instance_id:
            return None
        request = self._requests.get(parts["request"])
        return request if request is not None and request.owner == owner else None

    def find_by_id(self, request_id: str, owner: str) -> Request:
        """The request that a client gave this id; of several hand-overs the highest.

        Raises:
            NotFound: there is none.
        """
        found = [
            request
            for request in self._requests.values()
            if request.owner == owner and request.accepted.request_id == request_id
        ]
        if not found:
            raise NotFound(f"no request has the id {request_id!r}: unknown or released")
        return max(found, key=lambda request: request.accepted.handover)

    def find_either(self, handle: str | None, request_id: str | None, owner: str) -> Request:
        """The request of a handle, or without one that of the id that its client gave it."""
        return self.find_by_id(request_id or "", owner) if handle is None else self.find(handle, owner)

    def of_owner(self, owner: str, model_name: str = "") -> list[Request]:
        """The owner's requests, to one model or ("") to all, in order of arrival."""
        owned = (request for request in self._requests.values() if request.owner == owner)
        return [request for request in owned if model_name in ("", request.accepted.model_name)]

    def release(self, request: Request) -> None:
        """Forget a request and free its logs; readers that wait raise NotFound."""
        del self._requests[_id(request.accepted.handle)]
        key = (request.owner, request.accepted.request_id, request.accepted.handover)
        if key in self._starts:
            self._released.append((self._clock(), key))
        request.released = True
        self.leases.forget(request)
        for sequence in request.sequences:
            sequence.log.release()
            if sequence.room is not None:
                sequence.room.give_back()

    def begun(self, key: Key, content: bytes) -> asyncio.Future[AcceptedRequest] | None:
        """The answer of an earlier start with this key, or the one in progress; None: there was none.

        Raises:
            AlreadyExists: the earlier start had other content.
        """
        self._forget_keys()
        start = self._starts.get(key)
        if start is None:
            return None
        if start.content != content:
            text = f"request_id {key[1]!r} was used for a request with other content"
            raise AlreadyExists(text, reason="REQUEST_ID_REUSED")
        return start.answer

    def begin(self, key: Key, content: bytes, answer: asyncio.Future[AcceptedRequest]) -> None:
        """Note a start in progress. If it comes to nothing its key is free again."""
        self._starts[key] = _Start(content, answer)
        answer.add_done_callback(lambda done: self._keep_or_free(key, done))

    def _expire(self, request: Request) -> None:
        """Nobody came: stop a request that runs, release one that ended."""
        _log.info("lease_expired: %s, ended: %s", request.accepted.handle, request.ended)
        if request.ended:
            self.release(request)
        else:
            request.end(FinishReason.LEASE_EXPIRED)

    def _keep_or_free(self, key: Key, answer: asyncio.Future[AcceptedRequest]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._starts.pop(key, None)

    def _forget_keys(self) -> None:
        horizon = self._clock() - KEY_MEMORY
        while self._released and self._released[0][0] < horizon:
            self._starts.pop(self._released.popleft()[1], None)


def _id(handle: str) -> str:
    return handle.rpartition("/")[2]
