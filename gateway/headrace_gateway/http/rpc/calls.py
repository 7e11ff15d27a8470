"""The unary calls of the gRPC contract as JSON, by the Connect protocol: for curl, and for pages in a browser.

Bodies are the messages in protobuf's JSON form. See https://connectrpc.com/docs/protocol.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2  # noqa: F401  # The JSON form of details looks their types up.
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from headrace_proto.v1.status_pb2 import RetryInfo, Status
from headrace_proto.wire.status import CODE_NAMES, details_of, info_of
from headrace_proto.wire.transport import CallError

from headrace_gateway.http.clients import Clients
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import RETRY_SECONDS, Failure, invalid
from headrace_gateway.http.rpc.json_form import message_of, text_of

_LARGE = 64 << 10
"""Bytes of a message that is converted in a thread, so that streams go on."""

_TIMEOUT = "connect-timeout-ms"
_MAX_TIMEOUT_DIGITS = 10

_STATUSES = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "FAILED_PRECONDITION": HTTPStatus.BAD_REQUEST,
    "OUT_OF_RANGE": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "CANCELLED": HTTPStatus.REQUEST_TIMEOUT,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "ABORTED": HTTPStatus.CONFLICT,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
}
"""HTTP's status by gRPC's code; 500 for others."""

_CODES = {
    HTTPStatus.UNAUTHORIZED: "unauthenticated",
    HTTPStatus.FORBIDDEN: "permission_denied",
    HTTPStatus.REQUEST_TIMEOUT: "deadline_exceeded",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "resource_exhausted",
    HTTPStatus.TOO_MANY_REQUESTS: "resource_exhausted",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal",
}
"""Connect's code by HTTP's status, of a failure before the call; "invalid_argument" for others."""


class RpcDetail(msgspec.Struct):
    """A typed detail of a failure.

    Attributes:
        type: full name of the message.
        value: the message in base64, without padding.
        debug: the message as JSON, where its type is known.
    """

    type: str
    value: str
    debug: dict[str, Any] | None = None


class RpcErrorAnswer(msgspec.Struct):
    """The answer to a call that failed."""

    code: str
    message: str
    details: list[RpcDetail] = []


@dataclass(eq=False)
class RpcFailure(Failure):
    """A call failed.

    Attributes:
        status: with all its details.
    """

    status: Status = field(default_factory=Status)


class RpcErrors:
    """Writes failures in Connect's form. A `headrace_gateway.http.endpoint.ErrorForm`."""

    def body(self, failure: Failure) -> Any:
        """Return the answer's body."""
        if not isinstance(failure, RpcFailure):
            return RpcErrorAnswer(_CODES.get(failure.code, "invalid_argument"), failure.message)
        code = CODE_NAMES.get(failure.status.code, "UNKNOWN").lower().replace("cancelled", "canceled")
        return RpcErrorAnswer(code, failure.message, _details(failure.status))

    async def event(self, exchange: Exchange, failure: Failure) -> None:
        """Do nothing: a unary call sends no events."""


class Rpc:
    """Answers one unary method.

    Args:
        clients: call the gateway's own services.
        method: the method.
    """

    def __init__(self, clients: Clients, method: MethodDescriptor) -> None:
        self._clients = clients
        self._kind = GetMessageClass(method.input_type)
        self._name = path_of(method).removeprefix("/")

    async def __call__(self, exchange: Exchange) -> None:
        """Make the call and answer with its response."""
        given = await exchange.body()
        timeout = _timeout(exchange.request.headers.get(_TIMEOUT))
        large = int(exchange.request.headers.get("content-length", _LARGE)) >= _LARGE
        request = await exchange.convert(self._parsed, given) if large else self._parsed(given)
        async with exchange.attended():
            try:
                answer = await self._clients.services.unary(self._name, request, timeout=timeout)
            except CallError as error:
                raise _failed(error.status) from None
        large = answer.ByteSize() >= _LARGE
        text = await exchange.convert(text_of, answer) if large else text_of(answer)
        await exchange.answer_text(text, "application/json")

    def _parsed(self, given: dict[str, Any]) -> Message:
        try:
            return message_of(self._kind, given)
        except json_format.ParseError as error:
            raise invalid("the body", f"is no {self._kind.DESCRIPTOR.full_name}: {error}") from None


def unary_methods() -> list[MethodDescriptor]:
    """Return all methods of the contract that do not stream."""
    files = (engine_service_pb2, model_service_pb2, request_service_pb2)
    services = [one for file in files for one in file.DESCRIPTOR.services_by_name.values()]
    methods = [method for service in services for method in service.methods]
    return [one for one in methods if not (one.client_streaming or one.server_streaming)]


def path_of(method: MethodDescriptor) -> str:
    """Return the path of a method's route."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _timeout(text: str | None) -> float | None:
    """Return the seconds that the caller gives a call; None: no limit."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_TIMEOUT_DIGITS):
        raise invalid(_TIMEOUT, f'= "{text[:64]}" is no number of milliseconds of up to {_MAX_TIMEOUT_DIGITS} digits')
    return int(text) / 1000


def _failed(status: Status) -> RpcFailure:
    code = _STATUSES.get(CODE_NAMES.get(status.code, ""), HTTPStatus.INTERNAL_SERVER_ERROR)
    retry = next((one for one in details_of(status) if isinstance(one, RetryInfo)), None)
    wait = None if retry is None else retry.retry_delay.ToTimedelta().total_seconds()
    if wait is None and code is HTTPStatus.TOO_MANY_REQUESTS:
        wait = RETRY_SECONDS
    return RpcFailure(code, status.message, info_of(status).reason.lower(), retry_after=wait, status=status)


def _details(status: Status) -> list[RpcDetail]:
    found = []
    for packed in status.details:
        value = base64.b64encode(packed.value).decode().rstrip("=")
        known = details_of(Status(details=[packed]))
        debug = json_format.MessageToDict(known[0]) if known else None
        found.append(RpcDetail(packed.type_url.rpartition("/")[2], value, debug))
    return found
