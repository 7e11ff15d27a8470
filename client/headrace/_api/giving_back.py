"""Releasing a request where nobody may be there to do it."""

from __future__ import annotations

from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.connection import Connection
from headrace._base.retry import ONCE
from headrace._values.calls import REQUESTS

GIVE_BACK_TIMEOUT = 5.0
"""Seconds that somebody who is leaving waits for a release; what takes longer is left to the lease."""


def give_back(connection: Connection, handle: str) -> None:
    """Stops and releases a request with one question; what that does not reach is left to its lease.

    Raises:
        HeadraceError: nobody answered.
    """
    request = wire.ReleaseRequestRequest(handle=handle)
    method, answer = f"{REQUESTS}/ReleaseRequest", wire.ReleaseRequestResponse
    connection.call(method, request, answer, timeout=GIVE_BACK_TIMEOUT, handle=handle, policy=ONCE)
    connection.requests.released(handle)
