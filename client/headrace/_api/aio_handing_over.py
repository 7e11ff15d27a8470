"""Handing requests over to other engines, in tasks of the event loop."""

from __future__ import annotations

from contextlib import suppress

from headrace_proto.pure.faults import is_fault
from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.aio_connection import AsyncConnection
from headrace._api.handing_over import next_attempt
from headrace._api.release import RELEASE_TIMEOUT
from headrace._base.aio_waiting import being_cancelled
from headrace._base.retry import ONCE
from headrace._streaming.handover import Handover
from headrace._streaming.recovery import unanswered
from headrace._values.calls import REQUESTS
from headrace.errors import HeadraceError


def async_handover_of(
    connection: AsyncConnection, request: wire.StartRequestRequest, accepted: request_pb2.AcceptedRequest, begun: float
) -> Handover | None:
    """Return what moves a started request to another engine; None if the client hands nothing over."""
    if not connection.hands_over:
        return None

    def move(handover: Handover) -> None:
        if not connection.ending:
            connection.moves.spawn(_move(connection, handover), "headrace-handover")

    handover = Handover(request, accepted, move, clock=connection.clock, begun=begun)
    connection.requests.follow(handover)
    return handover


async def _move(connection: AsyncConnection, handover: Handover) -> None:
    try:
        accepted = await _start(connection, handover, handover.start())
        handover.accept(accepted)
        connection.requests.moved(handover.handle, accepted.handle)
    except BaseException as error:
        if not is_fault(error):
            raise
        handover.give_up(error)
        if not isinstance(error, HeadraceError):
            raise
    finally:
        if not being_cancelled():
            for handle in handover.unread(held=connection.requests.holds(handover.handle)):
                await _release(connection, handle)


async def _start(
    connection: AsyncConnection, handover: Handover, request: wire.StartRequestRequest
) -> request_pb2.AcceptedRequest:
    """Start the request on another engine.

    While no server is reached, wait for one as long as the caller holds the request: the lost engine may come back. One
    that has shut down ended the request itself, which is then reported.
    """
    while True:
        try:
            answer = await connection.call(
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
            if handover.drained or not unanswered(error):
                raise
            handover.interrupt(error)
            next_attempt(connection.requests, handover, request)


async def _release(connection: AsyncConnection, handle: str) -> None:
    """Release a copy that nobody reads, with one attempt: its lease ends it otherwise."""
    request, answer = wire.ReleaseRequestRequest(handle=handle), wire.ReleaseRequestResponse
    with suppress(HeadraceError):
        await connection.call(f"{REQUESTS}/ReleaseRequest", request, answer, timeout=RELEASE_TIMEOUT, policy=ONCE)
