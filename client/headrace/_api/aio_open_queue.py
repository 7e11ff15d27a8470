"""Opening a queue of the asynchronous client: its reader, the stream that fills it, and its calls."""

from __future__ import annotations

import weakref
from functools import partial

from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.aio_connection import AsyncConnection
from headrace._api.open_queue import POLL_TIMEOUT, introduce, sequence_in
from headrace._base.retry import ONCE, RetryPolicy
from headrace._streaming.aio_feed import AsyncFeed
from headrace._streaming.aio_pump import AsyncPump
from headrace._streaming.aio_queue import AsyncResultQueue
from headrace._streaming.delivered import Delivered
from headrace._streaming.handover import Handover
from headrace._streaming.reader import SequenceReader
from headrace._streaming.recovery import Recovery
from headrace._transport.aio_transport import AsyncMessageStream
from headrace._values.calls import REQUESTS
from headrace._values.convert import accepted_of


def open_async_queue(
    connection: AsyncConnection,
    accepted: request_pb2.AcceptedRequest,
    index: int,
    position: int = 0,
    info: request_pb2.SequenceInfo | None = None,
    *,
    first: bool,
    handover: Handover | None = None,
) -> AsyncResultQueue:
    """Return a queue that reads one sequence of a request, as `open_queue`."""
    source = _Source(connection, accepted, index)
    feed = source.feed(position, Delivered() if handover is not None else None)
    introduce(feed, info, position)
    connection.requests.reads(feed)
    fill = partial(connection.session.attach, feed, lambda: source.pump(feed))
    if handover is not None:
        handover.add(feed, fill)
    fill()
    queue = AsyncResultQueue(feed, request=accepted_of(accepted), index=index, fetch_info=source.fetch_info)
    dropped = partial(connection.requests.orphaned, feed) if first else feed.stop
    weakref.finalize(queue, connection.home.submit, dropped).atexit = False
    return queue


class _Source:
    """The calls and streams of one sequence. It must not refer to the queue, which the caller may drop."""

    def __init__(self, connection: AsyncConnection, accepted: request_pb2.AcceptedRequest, index: int) -> None:
        self._connection = connection
        self._handle = connection.requests.known_as(accepted.handle)
        self._request_id = accepted.request_id
        self._index = index

    def feed(self, position: int, delivered: Delivered | None) -> AsyncFeed:
        """Return the feed of a new reader at a position; the arguments are those of `SequenceReader`."""
        return AsyncFeed(
            SequenceReader(position, self._request_id, delivered),
            self._connection.home,
            self._connection.clock,
            handle=self._handle,
            index=self._index,
            request_id=self._request_id,
        )

    def pump(self, feed: AsyncFeed) -> None:
        """Start to fill a reader without a session, in a task that the connection owns."""
        policy, clock = self._connection.policy, self._connection.clock
        open_stream = partial(self._open_stream, feed)
        pump = AsyncPump(feed, Recovery(policy, clock), clock, open_stream=open_stream, poll=self._poll)
        self._connection.pumps.spawn(pump.run(), "headrace-stream")

    async def fetch_info(self) -> request_pb2.SequenceInfo | None:
        """Return the state of the sequence; None if it does not exist yet."""
        return await self._call(self._connection.timeout, None)

    async def _poll(self) -> request_pb2.SequenceInfo | None:
        return await self._call(POLL_TIMEOUT, ONCE)

    def _open_stream(self, feed: AsyncFeed, position: int) -> AsyncMessageStream:
        request = wire.GeneratedElementsRequest(handle=feed.current, index=self._index, from_position=position)
        return self._connection.stream(f"{REQUESTS}/GeneratedElements", request)

    async def _call(self, timeout: float | None, policy: RetryPolicy | None) -> request_pb2.SequenceInfo | None:
        request = wire.GetRequestRequest(handle=self._handle)
        answer = await self._connection.call(
            f"{REQUESTS}/GetRequest",
            request,
            wire.GetRequestResponse,
            timeout=timeout,
            request_id=self._request_id,
            handle=self._handle,
            policy=policy,
        )
        return sequence_in(answer, self._index)
