"""Start keys (idempotency keys): valid while their request exists, and for a while after."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from headrace_engine.engine.requests.request_size import held_bytes
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.errors import AlreadyExists, NotFound
from headrace_engine.request_types import AcceptedRequest

KEY_MEMORY = 600.0
"""Seconds after its release for which the key of a request still answers retries."""


SMALL = 4096
"""Maximum size of a config that is retained after the release, in bytes. Larger ones are dropped from the answer."""


class Key(NamedTuple):
    """The key that identifies a repeated start."""

    owner: str
    request_id: str
    handover: int


@dataclass(frozen=True, slots=True)
class _Start:
    """A start: the digest of its content, and its answer, which may still be pending."""

    content: bytes
    answer: asyncio.Future[AcceptedRequest]


class _Released(NamedTuple):
    """A released start with the time of its release. There may be many, so the answer is packed."""

    since: float
    handover: int
    content: bytes
    packed: bytes


class StartKeys:
    """Starts by key: in progress, accepted, or recently released."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._starts: dict[tuple[str, str], dict[int, _Start]] = {}
        self._released: dict[tuple[str, str], tuple[_Released, ...]] = {}
        self._by_age: deque[tuple[str, str]] = deque()
        self._packer = _Packer()
        self._arriving: dict[tuple[str, str], set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        """Return the number of remembered keys."""
        return sum(map(len, self._starts.values())) + len(self._by_age)

    def begun(self, key: Key, content: bytes) -> asyncio.Future[AcceptedRequest] | None:
        """Return the answer, perhaps pending, of an earlier start with this key; None: there was none.

        Raises:
            AlreadyExists: the earlier start had other content.
            NotFound: its request was released, so that its results are gone.
        """
        start = self._find(key)
        if start is not None and start.content != content:
            text = f"request_id {key.request_id!r} was used for a request with other content"
            raise AlreadyExists(text, reason="REQUEST_ID_REUSED")
        if isinstance(start, _Released):
            raise was_released(self._packer.unpack(start.packed), key.request_id)
        return None if start is None else start.answer

    def begin(self, key: Key, content: bytes, answer: asyncio.Future[AcceptedRequest]) -> None:
        """Record a start in progress. If it fails, its key is free again."""
        self._starts.setdefault(key[:2], {})[key.handover] = _Start(content, answer)
        answer.add_done_callback(lambda done: self._keep_or_free(key, done))

    def release(self, key: Key) -> None:
        """Record the release of a key's request; the key expires KEY_MEMORY later. Ignores unknown keys."""
        self._forget()
        start = self._starts.get(key[:2], {}).get(key.handover)
        if start is None:
            return
        released = _Released(self._clock(), key.handover, start.content, self._packer.pack(_short(start.answer)))
        self._free(key)
        owned = key[:2]
        self._released[owned] = (*self._released.get(owned, ()), released)
        self._by_age.append(owned)

    def latest(self, owner: str, request_id: str) -> AcceptedRequest | None:
        """Return the answer of the start with this request_id, released or not; of several hand-overs the latest."""
        self._forget()
        starts = self._starts.get((owner, request_id), {}).values()
        answers = [start.answer.result() for start in starts if _was_accepted(start.answer)]
        answers += [self._packer.unpack(released.packed) for released in self._released.get((owner, request_id), ())]
        return max(answers, key=lambda answer: answer.handover, default=None)

    @contextmanager
    def arriving(self, owner: str, request_id: str) -> Iterator[None]:
        """Mark a start with this request_id as arriving within the block: `settle` waits for it."""
        arrived = asyncio.get_running_loop().create_future()
        on_their_way = self._arriving.setdefault((owner, request_id), set())
        on_their_way.add(arrived)
        try:
            yield
        finally:
            arrived.set_result(None)
            on_their_way.discard(arrived)
            if not on_their_way:
                self._arriving.pop((owner, request_id), None)

    async def settle(self, owner: str, request_id: str) -> None:
        """Wait until every earlier start with this request_id was accepted or refused."""
        while pending := self._pending(owner, request_id):
            await asyncio.wait(pending)

    def _pending(self, owner: str, request_id: str) -> list[asyncio.Future[Any]]:
        starts = self._starts.get((owner, request_id), {}).values()
        undone = [start.answer for start in starts if not start.answer.done()]
        return [*undone, *self._arriving.get((owner, request_id), ())]

    def _keep_or_free(self, key: Key, answer: asyncio.Future[AcceptedRequest]) -> None:
        if not _was_accepted(answer):
            self._free(key)

    def _find(self, key: Key) -> _Start | _Released | None:
        self._forget()
        released = self._released.get(key[:2], ())
        gone = next((one for one in released if one.handover == key.handover), None)
        return gone or self._starts.get(key[:2], {}).get(key.handover)

    def _forget(self) -> None:
        horizon = self._clock() - KEY_MEMORY
        while self._by_age and self._released[self._by_age[0]][0].since < horizon:
            owned = self._by_age.popleft()
            _, *younger = self._released.pop(owned)
            if younger:
                self._released[owned] = tuple(younger)

    def _free(self, key: Key) -> None:
        starts = self._starts.get(key[:2], {})
        starts.pop(key.handover, None)
        if not starts:
            self._starts.pop(key[:2], None)


def was_released(answer: AcceptedRequest, request_id: str) -> NotFound:
    """Return the error for a request whose key is remembered after its release."""
    metadata = {"handle": answer.handle, "handover": str(answer.handover)}
    return NotFound(f"the request with the id {request_id!r} was released", metadata=metadata)


def _short(answer: asyncio.Future[AcceptedRequest]) -> AcceptedRequest:
    """Return an answer without a long config: the request is released, and no budget covers it."""
    accepted = answer.result()
    if accepted.effective_config is None or held_bytes(accepted.effective_config) <= SMALL:
        return accepted
    return replace(accepted, effective_config=None, warnings=())


def _was_accepted(answer: asyncio.Future[AcceptedRequest]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


class _Packer:
    """Packs answers into some hundred bytes each, where the objects take thousands.

    Most answers resemble the first one, so only the differences from it are stored.
    """

    def __init__(self) -> None:
        self._first = b""
        self._decoder = msgspec.msgpack.Decoder(AcceptedRequest)

    def pack(self, answer: AcceptedRequest) -> bytes:
        encoded = msgspec.msgpack.encode(answer)
        self._first = self._first or encoded
        packing = zlib.compressobj(zdict=self._first)
        return packing.compress(encoded) + packing.flush()

    def unpack(self, packed: bytes) -> AcceptedRequest:
        return self._decoder.decode(zlib.decompressobj(zdict=self._first).decompress(packed))
