"""Releasing a request where nobody may be there to do it."""

from __future__ import annotations

from headrace.calls import REQUESTS
from headrace.connection import Connection
from headrace.retry import RetryPolicy
from headrace.v1 import request_service_pb2 as wire

_TIMEOUT = 5.0  # seconds
_ONCE = RetryPolicy(give_up_after=0.0)


def give_back(connection: Connection, handle: str) -> None:
    """Stops and releases a request with one question; what that does not reach is left to its lease.

    Raises:
        HeadraceError: nobody answered.
    """
    request = wire.ReleaseRequestRequest(handle=handle)
    method, answer = f"{REQUESTS}/ReleaseRequest", wire.ReleaseRequestResponse
    connection.call(method, request, answer, timeout=_TIMEOUT, handle=handle, policy=_ONCE)
    connection.requests.released(handle)
