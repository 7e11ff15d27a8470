"""The one truth of what a sequence generated: its tokens by position, and its end."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

from headrace_engine.engine.results.token_details import NOTHING, TOKEN_BYTES, Asked, DetailLog, Top
from headrace_engine.errors import NotFound, OutOfRange
from headrace_engine.result_types import Elements, EndRecord, GenerateStatus, PrefixReuse, ReadResult, TokenDetails

MAX_READ_TOKENS = 4096
"""Tokens that one read returns at most."""

MAX_READ_TEXT = 512 * 1024
"""Bytes of text that one read returns at most, a single token excepted; with the ids it stays below 1 MiB."""

_MAX_READ_DETAILS = 432 * 1024
"""Bytes of details that one read returns at most, a single token excepted: they too leave it below 1 MiB."""


class Follower(Protocol):
    """Someone who is told that a log changed, and reads it later."""

    def touch(self) -> None:
        """The log changed. Called once a step and log; it must cost nothing and touch no other log."""


class ResultLog:
    """Tokens 0, 1, 2 … of one sequence, and then its end record. Any number of readers, each with its own position.

    Text belongs to the token that completed it, so what a reader sees depends on its position and on nothing else.

    Args:
        asked: what is told about each token beside its id and text.
        delivered: ids that another engine gave to the readers. They count, and cannot be read here.

    Attributes:
        asked: the same.
        end: the end record, once there is one.
        prefix: cache use of the prompt, once known.
        released: its request was released; nobody may read it any more.
        first_position: where the log begins: the number of ids delivered elsewhere.
    """

    def __init__(self, asked: Asked = NOTHING, *, delivered: Sequence[int] = ()) -> None:
        self._ids = array("I")
        self._checksums = array("I")
        self._texts: list[str] = []
        self._text_ends = array("Q")  # bytes of all text up to a token, itself included
        self.asked = asked
        self._details = DetailLog(asked) if asked else None
        fitting = _MAX_READ_DETAILS // max(1, asked.told_bytes - TOKEN_BYTES)
        self._read_tokens = max(1, min(MAX_READ_TOKENS, fitting))
        self._waiters: set[asyncio.Future[None]] = set()
        self._followers: dict[Follower, None] = {}
        self.released = False
        self.end: EndRecord | None = None
        self.prefix: PrefixReuse | None = None
        for token_id in delivered:
            self._append(token_id, "")
            if self._details is not None:
                self._details.skip()
        self.first_position = len(delivered)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> array[int]:
        """The ids in the log, from first_position on; not to be changed."""
        return self._ids[self.first_position :] if self.first_position else self._ids

    @property
    def checksum(self) -> int:
        """CRC-32 over all ids so far."""
        return self.checksum_before(len(self))

    @property
    def status(self) -> GenerateStatus:
        """The sequence's own status, whatever any reader has read."""
        return self.end.status if self.end else self.live_status

    @property
    def live_status(self) -> GenerateStatus:
        """The status before the end, also where that came since."""
        return self._status_after(len(self))

    def append(
        self, token_id: int, text: str, logprob: float | None = None, top: Top | None = None, vectors: bytes = b""
    ) -> None:
        """Add the next token and the text that it completed, and of the rest what is asked for."""
        self._append(token_id, text)
        if self._details is not None:
            self._details.add(logprob, top, vectors)

    def _append(self, token_id: int, text: str) -> None:
        checksums, ends = self._checksums, self._text_ends
        checksums.append(crc32(token_id.to_bytes(4, "little"), checksums[-1] if checksums else 0))
        ends.append((ends[-1] if ends else 0) + (len(text) if text.isascii() else len(text.encode())))
        self._ids.append(token_id)
        self._texts.append(text)

    def finish(self, record: EndRecord) -> None:
        """Add the end record, after the last token, and wake every reader."""
        self.end = record
        self.wake()

    def release(self) -> None:
        """Let readers raise NotFound from now on; the tokens go with the last of them."""
        self.released = True
        self.wake()

    def wake(self) -> None:
        """Let waiting readers look again, and tell those who follow."""
        for follower in self._followers:
            follower.touch()
        if self._waiters:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def follow(self, follower: Follower) -> None:
        """Tell someone of every change from now on."""
        self._followers[follower] = None

    @property
    def followers(self) -> int:
        """Those who are told of every change."""
        return len(self._followers)

    def unfollow(self, follower: Follower) -> None:
        """Tell them no more."""
        self._followers.pop(follower, None)

    def check_position(self, position: int) -> None:
        """Refuse a position that no reader of this log can be at.

        Raises:
            OutOfRange: with the numbers.
        """
        first, length = self.first_position, len(self)
        if not first <= position <= length:
            text = f"from_position = {position} is outside the log of {length} tokens; allowed: {first} to {length}"
            raise OutOfRange(text, metadata={"first_position": str(first), "generated_length": str(length)})

    def read(self, position: int) -> ReadResult | None:
        """What is unread at a position, as far as one read goes, with the end if nothing follows.

        None: nothing is unread yet.
        """
        stop = self._stop(position)
        end = self.end if stop == len(self) else None
        if stop == position and end is None:
            return None
        elements = self.elements(position, stop) if stop > position else None
        return ReadResult(end.status if end else self._status_after(stop), elements, end)

    def elements(self, start: int, stop: int) -> Elements:
        """Tokens start to stop as one element."""
        return Elements(
            position=start,
            token_ids=self._ids[start:stop].tolist(),
            text="".join(self._texts[start:stop]),
            checksum_before=self.checksum_before(start),
            checksum_after=self.checksum_before(stop),
            details=self.details(start, stop),
            prefix=self.prefix,
        )

    def columns(self, start: int, stop: int) -> tuple[array[int], str, int, TokenDetails | None]:
        """Tokens start to stop: ids, text, checksum after the last, and details where the config asked for any."""
        text = self._texts[start] if stop - start == 1 else "".join(self._texts[start:stop])
        return self._ids[start:stop], text, self._checksums[stop - 1], self.details(start, stop)

    def details(self, start: int, stop: int) -> TokenDetails | None:
        """What is told about tokens start to stop beside ids and text; None where the config asked for nothing."""
        return None if self._details is None else self._details.cut(start, stop)

    def told_bytes(self, elements: Elements) -> int:
        """Bytes of some of its tokens in a message, at most."""
        return len(elements.text.encode()) + len(elements.token_ids) * self.asked.told_bytes

    def fitting(self, start: int, stop: int, room: int, token_bytes: int) -> tuple[int, int]:
        """Where a piece from start ends that is no longer than to stop and has at most `room` bytes; and its bytes.

        Args:
            stop: beyond start.
            token_bytes: what a token takes beside its text.
        """
        ends = self._text_ends
        before = ends[start - 1] if start else 0
        size = ends[stop - 1] - before + (stop - start) * token_bytes
        if size > room:
            tokens = range(1, stop - start + 1)
            fit = bisect_right(tokens, room, key=lambda n: ends[start + n - 1] - before + n * token_bytes)
            return start + fit, ends[start + fit - 1] - before + fit * token_bytes if fit else 0
        return stop, size

    async def wait(self, position: int) -> None:
        """Wait until something is unread at a position.

        Raises:
            NotFound: the request was released.
        """
        while self._raise_if_released() or (len(self) <= position and self.end is None):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    async def wait_end(self) -> None:
        """Wait until the end record is there.

        Raises:
            NotFound: the request was released.
        """
        while self._raise_if_released() or self.end is None:
            await self.wait(len(self))

    def _stop(self, position: int) -> int:
        """Where a read from a position ends."""
        by_text = bisect_right(self._text_ends, self._text_before(position) + MAX_READ_TEXT)
        return min(len(self), position + self._read_tokens, max(by_text, position + 1))

    def _text_before(self, position: int) -> int:
        return self._text_ends[position - 1] if position else 0

    def _raise_if_released(self) -> bool:
        if self.released:
            raise NotFound("the request was released")
        return False

    def checksum_before(self, position: int) -> int:
        """CRC-32 over all ids before a position."""
        return self._checksums[position - 1] if position else 0

    def _status_after(self, length: int) -> GenerateStatus:
        if length == 0:
            return GenerateStatus.INIT
        return GenerateStatus.CONTEXT_FINISHED if length == 1 else GenerateStatus.GENERATING
