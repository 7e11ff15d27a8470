"""The log of a sequence: the single record of its output, and its readers."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Protocol

from headrace_engine.engine.results.log_contents import LogContents
from headrace_engine.engine.results.token_details import NOTHING, TOKEN_BYTES, DetailOptions, Top
from headrace_engine.errors import NotFound, OutOfRange
from headrace_engine.result_types import Elements, EndRecord, GenerateStatus, PrefixReuse, ReadResult

MAX_READ_TOKENS = 4096
"""Maximum number of tokens of one read."""

MAX_READ_TEXT = 512 * 1024
"""Maximum bytes of text of one read, except for a single token; with the ids, a read stays below 1 MiB."""

_MAX_READ_DETAILS = 432 * 1024
"""Maximum bytes of details of one read, except for a single token; a read with them stays below 1 MiB too."""


class Follower(Protocol):
    """A reader that is notified of changes to a log, and reads it later."""

    def touch(self) -> None:
        """Note that the log changed. Called once per step and log: must be cheap and touch no other log."""


class ResultLog:
    """The output of a sequence, for any number of readers, each with its own position.

    Args:
        options: the details that readers receive of each token.
        delivered: ids that another engine delivered. They count as generated, but cannot be read here.

    Attributes:
        options: the same.
        contents: the tokens and the end record.
        released: its request was released; reads raise NotFound.
        first_position: first readable position: the number of ids delivered elsewhere.
        searched: number of tokens of the beams of a search whose text will come here.
    """

    def __init__(self, options: DetailOptions = NOTHING, *, delivered: Sequence[int] = ()) -> None:
        self.options = options
        self.contents = LogContents(options)
        for token_id in delivered:
            self.contents.append_delivered(token_id)
        self.first_position = len(delivered)
        self.released = False
        self.searched = 0
        fitting = _MAX_READ_DETAILS // max(1, options.message_bytes - TOKEN_BYTES)
        self._read_tokens = max(1, min(MAX_READ_TOKENS, fitting))
        self._waiters: set[asyncio.Future[None]] = set()
        self._followers: dict[Follower, None] = {}

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def ids(self) -> array[int]:
        """Ids in the log, from first_position on; not to be modified."""
        return self.contents.ids(self.first_position)

    @property
    def end(self) -> EndRecord | None:
        """The end record, once there is one."""
        return self.contents.end

    @property
    def prefix(self) -> PrefixReuse | None:
        """Cache use of the prompt, once known."""
        return self.contents.prefix

    @property
    def checksum(self) -> int:
        """CRC-32 over all ids so far."""
        return self.checksum_before(len(self))

    @property
    def status(self) -> GenerateStatus:
        """Status of the sequence, independent of readers."""
        return self.end.status if self.end else self.live_status

    @property
    def live_status(self) -> GenerateStatus:
        """Status as before the end, even if the sequence has ended since."""
        return self._status_after(max(len(self), self.searched))

    def note_searched(self, length: int) -> None:
        """Note the progress of a beam search."""
        self.searched = length
        self.wake()

    def append(
        self, token_id: int, text: str, logprob: float | None = None, top: Top | None = None, vectors: bytes = b""
    ) -> None:
        """Append a token, the text that it completed, and the requested details."""
        self.contents.append(token_id, text, logprob, top, vectors)

    def show(self, contents: LogContents) -> None:
        """Continue with the contents of another sequence's log, and own them from now on."""
        if not self.options.logprobs:  # Kept for ranking alone.
            contents.drop_logprobs()
        self.contents = contents

    def finish(self, record: EndRecord) -> None:
        """Add the end record, after the last token, and wake every reader."""
        self.contents.end = record
        self.wake()

    def release(self) -> None:
        """Have reads raise NotFound from now on; the tokens are freed with the last reader."""
        self.released = True
        self.wake()

    def wake(self) -> None:
        """Wake waiting readers, and notify followers."""
        for follower in self._followers:
            follower.touch()
        if self._waiters:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            # That of a cancelled read is done already, and removes itself when its task runs again.
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def follow(self, follower: Follower) -> None:
        """Notify a follower of every change from now on."""
        self._followers[follower] = None

    @property
    def followers(self) -> int:
        """Number of followers."""
        return len(self._followers)

    def unfollow(self, follower: Follower) -> None:
        """Stop notifying a follower."""
        self._followers.pop(follower, None)

    def check_position(self, position: int) -> None:
        """Refuse a position outside the log.

        Raises:
            OutOfRange: with the numbers.
        """
        first, length = self.first_position, len(self)
        if not first <= position <= length:
            text = f"from_position = {position} is outside the log of {length} tokens; allowed: {first} to {length}"
            raise OutOfRange(text, metadata={"first_position": str(first), "generated_length": str(length)})

    def read(self, position: int) -> ReadResult | None:
        """Return the unread tokens at a position, up to the limits of one read, with the end if nothing follows.

        None: nothing is unread yet.
        """
        stop = self._stop(position)
        end = self.end if stop == len(self) else None
        if stop == position and end is None:
            return None
        elements = self.elements(position, stop) if stop > position else None
        return ReadResult(end.status if end else self._status_after(stop), elements, end)

    def elements(self, start: int, stop: int) -> Elements:
        """Return tokens start to stop as one element."""
        return self.contents.elements(start, stop)

    def message_bytes(self, elements: Elements) -> int:
        """Return the maximum bytes of these tokens in a message."""
        return len(elements.text.encode()) + len(elements.token_ids) * self.options.message_bytes

    async def wait(self, position: int) -> None:
        """Wait until something is unread at a position.

        Raises:
            NotFound: the request was released.
        """
        while self._raise_if_released() or (len(self) <= position and self.end is None):
            await self._next_wake()

    async def _next_wake(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def wait_searched(self, length: int) -> None:
        """Wait until a beam search has come to this length, or ended.

        Raises:
            NotFound: the request was released.
        """
        while self.searched < length and self.end is None and not self._raise_if_released():
            await self._next_wake()

    async def wait_end(self) -> None:
        """Wait for the end record.

        Raises:
            NotFound: the request was released.
        """
        while self._raise_if_released() or self.end is None:
            await self.wait(len(self))

    def _stop(self, position: int) -> int:
        """Return the end of a read from a position."""
        by_text = self.contents.stop_of_text(position, MAX_READ_TEXT)
        return min(len(self), position + self._read_tokens, max(by_text, position + 1))

    def _raise_if_released(self) -> bool:
        if self.released:
            raise NotFound("the request was released")
        return False

    def checksum_before(self, position: int) -> int:
        """Return the CRC-32 over all ids before a position."""
        return self.contents.checksum_before(position)

    def _status_after(self, length: int) -> GenerateStatus:
        if length == 0:
            return GenerateStatus.INIT
        return GenerateStatus.CONTEXT_FINISHED if length == 1 else GenerateStatus.GENERATING
