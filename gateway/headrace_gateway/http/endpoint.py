"""A route: counts its requests as calls, and answers failures in the form of its API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

from headrace_proto.pure.faults import is_fault
from headrace_proto.pure.host_shares import host_of
from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.logs import logger
from headrace_proto.server.traces import note_trace
from starlette.requests import Request

from headrace_gateway import status
from headrace_gateway.access import callers, refusals
from headrace_gateway.access.access import Access
from headrace_gateway.faults import defect
from headrace_gateway.forwarding.call_counts import CANCELLED, HTTP, Outcome
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http.bodies import Bodies
from headrace_gateway.http.callers import CALLER, caller_of, credentials_of
from headrace_gateway.http.exchange import Exchange, headers_of
from headrace_gateway.http.failures import Failure, refusal_of
from headrace_gateway.http.hosts import check_host

log = logger(__name__)
_refusals = LogBudget()

Handler = Callable[[Exchange], Awaitable[None]]

_COUNTED_AS = "Generate"
"""The gRPC method that an HTTP request counts as, in shares and for a drain: it ends by itself."""


class ErrorForm(Protocol):
    """How an API writes a failure."""

    def body(self, failure: Failure) -> Any:
        """Return the body of a failed request's answer, as a struct."""

    async def event(self, exchange: Exchange, failure: Failure) -> None:
        """Send a failure within a stream of events, and end the stream."""


class Endpoint:
    """An ASGI application for one route.

    Args:
        handler: answers a request.
        form: how failures are written.
        calls: where requests are counted.
        bodies: bounds the bodies that are read at once.
        access: who may call.
    """

    def __init__(self, handler: Handler, form: ErrorForm, calls: LiveCalls, bodies: Bodies, access: Access) -> None:
        self._handler, self._form, self._calls, self._bodies = handler, form, calls, bodies
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        caller = caller_of(scope, request.headers)
        CALLER.set(caller)
        note_trace(dict(caller.metadata))
        exchange = Exchange(request, caller, send, self._bodies)
        with self._calls.counts.counting(HTTP, _route(exchange)) as outcome, self._calls.entered(_COUNTED_AS):
            failure = await self._run(exchange, outcome)
            if failure is not None:
                outcome.code, outcome.reason = str(int(failure.code)), failure.reason.upper()
            else:
                outcome.code = CANCELLED if exchange.left else str(int(HTTPStatus.OK))
        if failure is None:
            return
        _log(exchange, failure)
        if not exchange.begun:
            await exchange.answer(self._form.body(failure), failure.code, headers_of(failure))
        elif exchange.streams:
            await self._form.event(exchange, failure)
        else:
            raise ConnectionError(failure.reason)  # uvicorn closes the connection: half an answer was sent.

    async def _run(self, exchange: Exchange, outcome: Outcome) -> Failure | None:
        """Answer a request. Return its failure, if it fails and its caller is still there."""
        try:
            if not self._access.has_keys:
                check_host(exchange.request.scope, exchange.request.headers.get("host", ""))
            caller = self._access.caller(credentials_of(exchange.request.headers))
            callers.note(caller)
            outcome.key = caller.key.name if caller.key is not None else ""
            self._calls.belong(caller)
            self._calls.refuse_if_draining()
            with self._calls.sharing(_COUNTED_AS, exchange.caller.peer):
                await self._handler(exchange)
        except Failure as failure:
            return failure
        except status.CallError as error:
            return refusal_of(error)
        except asyncio.CancelledError:
            if exchange.left:
                return None
            if self._calls.was_revoked():
                return refusal_of(refusals.key_taken_away())
            if not self._calls.was_cut():
                raise
            return refusal_of(status.draining())
        except BaseException as error:
            if not is_fault(error):
                raise
            return refusal_of(defect(exchange.request.url.path, error))
        return None


def _log(exchange: Exchange, failure: Failure) -> None:
    """Log a refusal. Only the route and the reason: messages may quote what a user sent."""
    route, host = _route(exchange), host_of(exchange.caller.peer)
    omitted = _refusals.line((route, failure.reason), "", host)
    if omitted is not None:
        log.info("request_refused", method=route, code=int(failure.code), reason=failure.reason, **omitted)


def _route(exchange: Exchange) -> str:
    """Return method and path of a request's route: of a bounded many, whatever is asked for."""
    scope = exchange.request.scope
    route = scope.get("route")
    return "another path" if route is None else f"{scope['method']} {route.path}"
