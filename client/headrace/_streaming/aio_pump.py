"""A task that fills one reader from a stream of its own; for servers without sessions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from headrace_proto.pure.faults import is_fault
from headrace_proto.v1 import request_pb2
from headrace_proto.wire.transport import CallError

from headrace._base.aio_waiting import AsyncClock
from headrace._base.deadline import Deadline
from headrace._streaming.aio_feed import AsyncFeed
from headrace._streaming.pump import POLL_INTERVAL
from headrace._streaming.reader import SequenceReader
from headrace._streaming.recovery import Recovery
from headrace._transport.aio_transport import AsyncMessageStream
from headrace._transport.transport import broke_off
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError, InternalServerError

logger = logging.getLogger(__name__)


class AsyncPump:
    """Opens the stream, and opens it again when it breaks. The task ends with the sequence.

    The arguments are those of `Pump`.
    """

    def __init__(
        self,
        feed: AsyncFeed,
        recovery: Recovery,
        clock: AsyncClock,
        *,
        open_stream: Callable[[int], AsyncMessageStream],
        poll: Callable[[], Awaitable[request_pb2.SequenceInfo | None]],
    ) -> None:
        self._feed = feed
        self._reader = feed.reader
        self._handle = feed.current
        self._recovery = recovery
        self._clock = clock
        self._open_stream = open_stream
        self._poll = poll
        self._stream: AsyncMessageStream | None = None

    async def run(self) -> None:
        """Read until the sequence is complete or no longer needed."""
        self._feed.moved = self._moved
        try:
            while await self._wait_for_window():
                await self._attempt()
        except BaseException as bug:
            if not is_fault(bug):
                raise
            # Blocked reads must get the error: if the task just died, they would wait for ever.
            logger.exception("reading results failed")
            self._feed.fail(InternalServerError(f"reading results failed: {bug!r}"))
        finally:
            # This runs too when the loop ends before the client is closed.
            if self._needed:
                self._feed.stop()

    @property
    def _needed(self) -> bool:
        """True if the stream should deliver more; not once the request has moved, as another pump follows it there."""
        return self._reader.unfilled and self._feed.current == self._handle

    def _moved(self) -> None:
        self._feed.changed.notify_all()  # What was read may open the window.
        if self._stream is not None and not self._needed:
            self._stream.cancel()

    async def _attempt(self) -> None:
        try:
            await self._read_stream()
        except CallError as failure:
            feed = self._feed
            await self._recover(error_from_status(failure.status, request_id=feed.request_id, handle=feed.handle))
        except HeadraceError as damage:
            self._feed.fail(damage)

    async def _read_stream(self) -> None:
        stream = self._stream = self._open_stream(self._reader.position)
        try:
            async for response in stream:
                self._recovery.progressed()
                self._feed.apply(SequenceReader.feed, response)
                if not await self._wait_for_window():
                    return
        finally:
            stream.cancel()
        raise broke_off("the result stream")

    async def _recover(self, error: HeadraceError) -> None:
        deadline = Deadline(self._clock, self._feed.broken(error, self._recovery))
        while self._needed and not deadline.passed:
            await self._clock.wait(self._feed.changed, deadline.left())

    async def _wait_for_window(self) -> bool:
        """Wait while the window is closed; return False if no more results are needed."""
        feed = self._feed
        while True:
            if feed.window_closed:
                await self._clock.wait(feed.changed, POLL_INTERVAL)
            if not feed.window_closed:
                return self._needed
            # Status and length of an unread queue are kept current too.
            with feed.polling():
                if (info := await self._poll()) is not None:
                    feed.observe(info)
