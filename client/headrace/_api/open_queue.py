"""Opening a queue: its reader, the stream that fills it, and its calls."""

from __future__ import annotations

import weakref
from functools import partial

from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.wire.transport import MessageStream

from headrace._api.connection import Connection
from headrace._base.retry import ONCE, RetryPolicy
from headrace._streaming.delivered import Delivered
from headrace._streaming.feed import BaseFeed, Feed
from headrace._streaming.handover import Handover
from headrace._streaming.pump import Pump
from headrace._streaming.reader import SequenceReader
from headrace._streaming.recovery import Recovery
from headrace._streaming.result_queue import ResultQueue
from headrace._values.calls import REQUESTS
from headrace._values.convert import accepted_of

# Seconds for a status poll: a short time, since the next poll follows within a second.
POLL_TIMEOUT = 5.0


def open_queue(
    connection: Connection,
    accepted: request_pb2.AcceptedRequest,
    index: int,
    position: int = 0,
    info: request_pb2.SequenceInfo | None = None,
    *,
    first: bool,
    handover: Handover | None = None,
) -> ResultQueue:
    """Return a queue that reads one sequence of a request from a position on, and start to fill it.

    The caller owns the queue. The connection keeps weak references only, and a finalizer detaches a dropped queue.

    Args:
        connection: connection of the client.
        accepted: the request.
        index: index of the sequence.
        position: position of the first token to read.
        info: state of the sequence, if it is known already.
        first: True for the queue that starting the request returns; the request stays attached if it is dropped.
        handover: moves the request to another engine when its engine is lost; None: the queue ends then.
    """
    source = _Source(connection, accepted, index)
    feed = source.feed(position, Delivered() if handover is not None else None)
    introduce(feed, info, position)
    connection.janitor.start()
    connection.requests.reads(feed)
    fill = partial(connection.session.attach, feed, lambda: source.pump(feed).start())
    if handover is not None:
        handover.add(feed, fill)
    fill()
    queue = ResultQueue(feed, request=accepted_of(accepted), index=index, fetch_info=source.fetch_info)
    dropped = partial(connection.requests.orphaned, feed) if first else feed.stop
    weakref.finalize(queue, connection.janitor.submit, dropped).atexit = False
    return queue


def introduce(feed: BaseFeed, info: request_pb2.SequenceInfo | None, position: int) -> None:
    """Update a new reader with the known state of its sequence."""
    # The server rejects a position beyond the end.
    if info is not None and position <= info.generated_length:
        feed.observe(info)


class _Source:
    """The calls and streams of one sequence. It must not refer to the queue, which the caller may drop."""

    def __init__(self, connection: Connection, accepted: request_pb2.AcceptedRequest, index: int) -> None:
        self._connection = connection
        self._handle = connection.requests.known_as(accepted.handle)
        self._request_id = accepted.request_id
        self._index = index

    def feed(self, position: int, delivered: Delivered | None) -> Feed:
        """Return the feed of a new reader at a position; the arguments are those of `SequenceReader`."""
        return Feed(
            SequenceReader(position, self._request_id, delivered),
            self._connection.session.lock,
            self._connection.clock,
            handle=self._handle,
            index=self._index,
            request_id=self._request_id,
        )

    def pump(self, feed: Feed) -> Pump:
        """Return the pump that fills a reader without a session."""
        recovery = Recovery(self._connection.policy, self._connection.clock)
        open_stream = partial(self._open_stream, feed)
        return Pump(feed, recovery, self._connection.clock, open_stream=open_stream, poll=self._poll)

    def fetch_info(self) -> request_pb2.SequenceInfo | None:
        """Return the state of the sequence; None if it does not exist yet."""
        return self._call(self._connection.timeout, None)

    def _poll(self) -> request_pb2.SequenceInfo | None:
        return self._call(POLL_TIMEOUT, ONCE)

    def _open_stream(self, feed: Feed, position: int) -> MessageStream:
        request = wire.GeneratedElementsRequest(handle=feed.current, index=self._index, from_position=position)
        return self._connection.stream(f"{REQUESTS}/GeneratedElements", request)

    def _call(self, timeout: float | None, policy: RetryPolicy | None) -> request_pb2.SequenceInfo | None:
        answer = self._connection.call(
            f"{REQUESTS}/GetRequest",
            wire.GetRequestRequest(handle=self._handle),
            wire.GetRequestResponse,
            timeout=timeout,
            request_id=self._request_id,
            handle=self._handle,
            policy=policy,
        )
        return sequence_in(answer, self._index)


def sequence_in(answer: wire.GetRequestResponse, index: int) -> request_pb2.SequenceInfo | None:
    """Return the state of a sequence in a response; None if it does not exist yet."""
    return next((one for one in answer.request.sequences if one.index == index), None)
