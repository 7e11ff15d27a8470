"""Handing requests over to other engines, in threads."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from headrace_proto.pure.faults import is_fault
from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.connection import Connection
from headrace._api.open_requests import OpenRequests
from headrace._api.release import RELEASE_TIMEOUT
from headrace._base.retry import ONCE
from headrace._streaming.handover import Handover
from headrace._streaming.recovery import unanswered
from headrace._values.calls import REQUESTS
from headrace.errors import HeadraceError, RequestReleasedError


def handover_of(
    connection: Connection, request: wire.StartRequestRequest, accepted: request_pb2.AcceptedRequest, begun: float
) -> Handover | None:
    """Return what moves a started request to another engine; None if the client hands nothing over."""
    if not connection.hands_over:
        return None

    def move(handover: Handover) -> None:
        connection.movers.submit(partial(_move, connection, handover))

    handover = Handover(request, accepted, move, clock=connection.clock, begun=begun)
    connection.requests.follow(handover)
    return handover


def _move(connection: Connection, handover: Handover) -> None:
    lock = connection.session.lock
    try:
        with lock:
            request = handover.start()
        accepted = _start(connection, handover, request)
        with lock:
            handover.accept(accepted)
            connection.requests.moved(handover.handle, accepted.handle)
    except BaseException as error:
        if not is_fault(error):
            raise
        with lock:
            handover.give_up(error)
        if not isinstance(error, HeadraceError):
            raise
    finally:
        for handle in handover.unread(held=connection.requests.holds(handover.handle)):
            _release(connection, handle)


def _start(
    connection: Connection, handover: Handover, request: wire.StartRequestRequest
) -> request_pb2.AcceptedRequest:
    """Start the request on another engine.

    While no server is reached, wait for one as long as the caller holds the request: the lost engine may come back. One
    that has shut down ended the request itself, which is then reported.
    """
    while True:
        try:
            answer = connection.call(
                f"{REQUESTS}/StartRequest",
                request,
                wire.StartRequestResponse,
                timeout=connection.timeout,
                request_id=request.request_id,
                before_retry=lambda attempt: next_attempt(connection.requests, handover, request),
                policy=connection.patient,
            )
            return answer.request
        except HeadraceError as error:
            if not unanswered(error):
                raise
            with connection.session.lock:
                if handover.drained:
                    raise
                handover.interrupt(error)
            next_attempt(connection.requests, handover, request)


def next_attempt(requests: OpenRequests, handover: Handover, request: wire.StartRequestRequest) -> None:
    """Number the next attempt to start a request on another engine.

    Raises:
        RequestReleasedError: its caller has released it meanwhile.
    """
    if not requests.holds(handover.handle):
        raise RequestReleasedError("the request was released", request_id=handover.request_id)
    request.attempt += 1


def _release(connection: Connection, handle: str) -> None:
    """Release a copy that nobody reads, with one attempt: its lease ends it otherwise."""
    request, answer = wire.ReleaseRequestRequest(handle=handle), wire.ReleaseRequestResponse
    with suppress(HeadraceError):
        connection.call(f"{REQUESTS}/ReleaseRequest", request, answer, timeout=RELEASE_TIMEOUT, policy=ONCE)
