"""Requests by handle and by the id that their client chose."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace_engine.engine.detokenizer import Detokenizer
from headrace_engine.engine.result_log import ResultLog
from headrace_engine.engine.statistics import Clock, SequenceTimes
from headrace_engine.errors import AlreadyExists, HeadraceError, NotFound
from headrace_engine.types import AcceptedRequest, EndRecord, FinishReason, RequestStat, RequestView, SequenceView

if TYPE_CHECKING:
    from headrace_engine.engine.model import Model

KEY_MEMORY = 600.0
"""Seconds after release for which the key of a request still answers a retry."""

_HANDLE = re.compile(r".*/(?P<instance>[0-9a-f]{16})/(?P<request>[0-9a-f]{32})", re.DOTALL)

Key = tuple[str, str, int]
"""Owner, request_id and hand-over: what makes a start idempotent."""


class Sequence:
    """One of a request's sequences: its log, the decoder of its text, and what happened when.

    Args:
        key: the number that the core knows it by.
    """

    def __init__(self, index: int, key: int, log: ResultLog, decoder: Detokenizer, times: SequenceTimes) -> None:
        self.index = index
        self.key = key
        self.log = log
        self.decoder = decoder
        self.times = times

    @property
    def stat(self) -> RequestStat:
        """Statistics so far, or the final ones."""
        return self.log.end.stat if self.log.end else self.times.stat(len(self.log))

    def finish(self, reason: FinishReason, now: float, error: HeadraceError | None = None) -> None:
        """Write the end record."""
        self.times.finished = now
        text = self.decoder.flush()
        length = len(self.log)
        record = EndRecord(reason, length, text, self.log.checksum, self.times.stat(length))
        self.log.finish(replace(record, error=error))

    def view(self) -> SequenceView:
        """The sequence as it stands."""
        return SequenceView(
            index=self.index,
            status=self.log.status,
            generated_length=len(self.log),
            checksum=self.log.checksum,
            stat=self.stat,
            end=self.log.end,
            prefix=self.log.prefix,
        )


class Request:
    """A request that was accepted, with its sequences."""

    def __init__(
        self, owner: str, serial: int, model: Model, accepted: AcceptedRequest, sequences: list[Sequence]
    ) -> None:
        self.owner = owner
        self.serial = serial
        self.model = model
        self.accepted = accepted
        self.sequences = sequences
        self.readers = 0

    def arrive(self) -> None:
        """Somebody is there for it, until `leave`. Everyone who arrives leaves once."""
        self.readers += 1

    def leave(self) -> None:
        """One of those who arrived is gone."""
        self.readers -= 1

    @property
    def ended(self) -> bool:
        """All sequences have ended."""
        return all(sequence.log.end is not None for sequence in self.sequences)

    def sequence(self, index: int) -> Sequence:
        """A sequence by its number.

        Raises:
            NotFound: the request has no such sequence.
        """
        if not 0 <= index < len(self.sequences):
            raise NotFound(f"the request has {len(self.sequences)} sequence(s), none with index {index}")
        return self.sequences[index]

    def view(self, *, with_config: bool) -> RequestView:
        """The request as it stands."""
        accepted = self.accepted if with_config else replace(self.accepted, effective_config=None)
        return RequestView(accepted, tuple(sequence.view() for sequence in self.sequences), self.readers)

    async def wait_end(self) -> None:
        """Wait until all sequences have ended.

        Raises:
            NotFound: the request was released meanwhile.
        """
        for sequence in self.sequences:
            await sequence.log.wait_end()


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
    """

    def __init__(self, engine: str, instance_id: str, clock: Clock) -> None:
        self._prefix = f"{engine}/{instance_id}/"
        self._instance_id = instance_id
        self._clock = clock
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
        """Keep a request."""
        self._requests[_id(request.accepted.handle)] = request

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
        for sequence in request.sequences:
            sequence.log.release()

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

    def _keep_or_free(self, key: Key, answer: asyncio.Future[AcceptedRequest]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._starts.pop(key, None)

    def _forget_keys(self) -> None:
        horizon = self._clock() - KEY_MEMORY
        while self._released and self._released[0][0] < horizon:
            self._starts.pop(self._released.popleft()[1], None)


def _id(handle: str) -> str:
    return handle.rpartition("/")[2]
