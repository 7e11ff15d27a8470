"""Failures in the form of Anthropic's API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

import msgspec

from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import Failure

_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


class AnthropicError(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class ErrorAnswer(msgspec.Struct):
    """The answer to a request that failed, and the last event of a stream that did."""

    error: AnthropicError
    type: Literal["error"] = "error"


class AnthropicErrors:
    """Writes failures. A `headrace_gateway.http.endpoint.ErrorForm`."""

    def body(self, failure: Failure) -> Any:
        """Return the answer's body."""
        wrong = failure.code < HTTPStatus.INTERNAL_SERVER_ERROR
        kind = _TYPES.get(failure.code, "invalid_request_error" if wrong else "api_error")
        return ErrorAnswer(AnthropicError(kind, failure.message))

    async def event(self, exchange: Exchange, failure: Failure) -> None:
        """Send the failure as the last event."""
        await exchange.event(self.body(failure), "error")
        await exchange.end_events()
