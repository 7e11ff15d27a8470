"""Puts a queue together: its reader, the thread that feeds it, and what it asks the server."""

from __future__ import annotations

import weakref
from functools import partial

from headrace.calls import REQUESTS
from headrace.connection import Connection
from headrace.convert import accepted_of
from headrace.pump import Pump
from headrace.reader import SequenceReader
from headrace.recovery import Recovery
from headrace.result_queue import ResultQueue
from headrace.retry import RetryPolicy
from headrace.transport import MessageStream
from headrace.v1 import request_pb2, request_service_pb2

# A look beside the stream is worth little patience: the next one comes within a second.
_LOOK_TIMEOUT = 5.0
_ONCE = RetryPolicy(give_up_after=0.0)


def open_queue(
    connection: Connection,
    accepted: request_pb2.AcceptedRequest,
    index: int,
    position: int = 0,
    info: request_pb2.SequenceInfo | None = None,
    *,
    first: bool,
) -> ResultQueue:
    """A queue that reads one sequence of a request, from a position on, and begins at once.

    Args:
        connection: where the request is reached.
        accepted: the request.
        index: the sequence.
        position: place of the first token wanted.
        info: the sequence as it stands, where that is known already.
        first: it is the queue that the start of the request answers: the request stays attached without it.
    """
    handle = accepted.handle
    reader = SequenceReader(position, accepted.request_id)

    def open_stream(position: int) -> MessageStream:
        request = request_service_pb2.GeneratedElementsRequest(handle=handle, index=index, from_position=position)
        return connection.stream(f"{REQUESTS}/GeneratedElements", request)

    def look(policy: RetryPolicy | None = None) -> request_pb2.SequenceInfo | None:
        answer = connection.call(
            f"{REQUESTS}/GetRequest",
            request_service_pb2.GetRequestRequest(handle=handle),
            request_service_pb2.GetRequestResponse,
            timeout=connection.timeout if policy is None else _LOOK_TIMEOUT,
            request_id=accepted.request_id,
            handle=handle,
            policy=policy,
        )
        return next((one for one in answer.request.sequences if one.index == index), None)

    pump = Pump(
        reader,
        Recovery(connection.policy, connection.clock),
        open_stream=open_stream,
        look=lambda: look(_ONCE),
        handle=handle,
        index=index,
        request_id=accepted.request_id,
    )
    # A position beyond the end is for the server to refuse.
    if info is not None and position <= info.generated_length:
        pump.observe(info)
    connection.janitor.start()
    connection.requests.reads(pump)
    pump.start()
    queue = ResultQueue(pump, request=accepted_of(accepted), index=index, look=look)
    dropped = partial(connection.requests.orphaned, pump) if first else pump.stop
    weakref.finalize(queue, connection.janitor.ask, dropped).atexit = False
    return queue
