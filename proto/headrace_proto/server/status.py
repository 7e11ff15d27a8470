"""How a call ends with a failure."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.status import trailer_of

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def grpc_code(status: Status) -> grpc.StatusCode:
    """Return the code of a status as grpc's enum; UNKNOWN for a number that gRPC does not know."""
    return _CODES.get(status.code, grpc.StatusCode.UNKNOWN)


async def abort(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
    """End a call with a status and its details."""
    trailers = trailer_of(status) if status.details else ()
    await context.abort(grpc_code(status), status.message, trailing_metadata=trailers)
