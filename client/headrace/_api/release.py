"""Releasing a request with one attempt, when the server may be unreachable."""

from __future__ import annotations

from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.connection import Connection
from headrace._base.retry import ONCE
from headrace._values.calls import REQUESTS

RELEASE_TIMEOUT = 5.0
"""Seconds to wait for a release while closing; the lease ends the request if it takes longer."""

SILENT_AFTER = 2.0
"""Seconds of these after which a release is sent again, over a new connection: the present one may be dead."""


def try_release(connection: Connection, handle: str) -> None:
    """Stop and release a request with one attempt; if it fails, the lease ends the request.

    Raises:
        HeadraceError: the call failed.
    """
    request = wire.ReleaseRequestRequest(handle=handle)
    method, answer = f"{REQUESTS}/ReleaseRequest", wire.ReleaseRequestResponse
    connection.call(method, request, answer, timeout=RELEASE_TIMEOUT, handle=handle, policy=ONCE)
    connection.requests.released(handle)
