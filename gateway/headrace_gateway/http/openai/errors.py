"""Failures in the form of OpenAI's API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import Failure

_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}

_CODES = {"prompt_too_long": "context_length_exceeded", "unknown_model": "model_not_found"}
"""What programs look for, where it differs from the reason."""


class Error(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    """The answer to a request that failed."""

    error: Error


class OpenAiErrors:
    """Writes failures. A `headrace_gateway.http.endpoint.ErrorForm`."""

    def body(self, failure: Failure) -> Any:
        """Return the answer's body."""
        kind = "invalid_request_error" if failure.code < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        code = _CODES.get(failure.reason, failure.reason)
        return ErrorAnswer(Error(failure.message, _TYPES.get(failure.code, kind), failure.field or None, code))

    async def event(self, exchange: Exchange, failure: Failure) -> None:
        """Send the failure as the last event."""
        await exchange.event(self.body(failure))
        await exchange.end_events()
