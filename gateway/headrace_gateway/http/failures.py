"""Failures of HTTP requests: their status codes, and where they come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus

import grpc
from headrace.errors import (
    AuthError,
    ConflictError,
    DeadlineError,
    EngineLostError,
    HeadraceError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    StateError,
    UnavailableError,
)

from headrace_gateway import status

_STATUSES: tuple[tuple[type[HeadraceError], HTTPStatus], ...] = (
    (InvalidRequestError, HTTPStatus.BAD_REQUEST),
    (EngineLostError, HTTPStatus.SERVICE_UNAVAILABLE),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (StateError, HTTPStatus.SERVICE_UNAVAILABLE),
    (OverloadedError, HTTPStatus.TOO_MANY_REQUESTS),
    (UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (AuthError, HTTPStatus.UNAUTHORIZED),
    (DeadlineError, HTTPStatus.GATEWAY_TIMEOUT),
)

_OWN_STATUSES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
}
_PASSING = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_INDEX = re.compile(r"\[\d+\]")

RETRY_SECONDS = 1.0
"""What `Retry-After` says where an overload came without a time."""


@dataclass(eq=False)
class Failure(Exception):
    """An HTTP request failed.

    Attributes:
        code: HTTP status.
        message: one sentence, with the values and what to change.
        reason: machine-readable: a reason of the wire contract in lower case, or one of HTTP's own.
        field: path of the field in the request's body that is wrong; "": none.
        retry_after: seconds to wait before a retry; None: a retry does not help.
        close: the connection is of no use for another request: its body was not read to the end.
    """

    code: HTTPStatus
    message: str
    reason: str
    field: str = ""
    retry_after: float | None = None
    close: bool = False

    def __str__(self) -> str:
        return self.message


def invalid(field: str, problem: str, reason: str = "invalid_value") -> Failure:
    """Return the failure of a field; `problem` follows its name, as in "= 3 is too large; allowed: 0 to 2"."""
    return Failure(HTTPStatus.BAD_REQUEST, f"{field} {problem}", reason, field)


def failure_of(error: HeadraceError, names: Mapping[str, str]) -> Failure:
    """Return the failure of a request whose call failed.

    Args:
        error: the client's error.
        names: what the API calls the fields of the wire contract, by their paths there. One with `[]` is what parts of
            a list are called, with their indices where the name has `[]` again; `messages[]` is for all parts of any,
            and `messages[0]` for those of the first one.
    """
    code = next((code for kind, code in _STATUSES if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    if error.reason == "NOT_ALLOWED":
        code = HTTPStatus.FORBIDDEN
    retry_after = error.retry_after
    if code is HTTPStatus.TOO_MANY_REQUESTS and retry_after is None:
        retry_after = RETRY_SECONDS
    found = Failure(code, error.message, error.reason.lower(), retry_after=retry_after)
    violations = error.details.get("field_violations", ())
    if not violations:
        return found
    field, message = named(violations[0]["field"], found.message, names)
    return replace(found, message=message, field=field)


def refusal_of(error: status.CallError) -> Failure:
    """Return the failure of a request that the gateway itself refuses."""
    code = _OWN_STATUSES.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return Failure(code, str(error), error.reason.lower(), retry_after=RETRY_SECONDS if code in _PASSING else None)


def named(path: str, message: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return a field as the API names it, and a message about it with that name at its beginning.

    Args:
        path: path of the field in the wire contract.
        message: a sentence about it.
        names: as of `failure_of`.
    """
    own = re.sub(r"^(config|chat)\.", "", path)
    name = _name(own, names)
    shown = f"a part of {name}" if "[" in own and "[" not in name else name
    return name, re.sub(rf"^({re.escape(path)}|{re.escape(own)}|ids)(?!\w)", lambda _: shown, message)


def _name(own: str, names: Mapping[str, str]) -> str:
    stem, rest = re.fullmatch(r"(\w*)(.*)", own, re.DOTALL).groups()  # type: ignore[union-attr]  # It fits all.
    index = _INDEX.match(rest)
    of_list = names.get(f"{stem}{index[0]}") if index is not None else None
    of_list = of_list or (names.get(f"{stem}[]") if rest else None) or names.get(_INDEX.sub("[]", own))
    if of_list is None:
        return names.get(stem, stem) + rest
    indices = iter(_INDEX.findall(own))
    return re.sub(r"\[\]", lambda _: next(indices), of_list)
