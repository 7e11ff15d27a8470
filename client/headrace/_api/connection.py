"""Calls with retries over a transport, for all methods of a client."""

from __future__ import annotations

import numbers
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from headrace_proto.wire.transport import CallError, MessageStream, Reconnecting, Transport, client_closed

from headrace._api.open_requests import OpenRequests
from headrace._base.attempts import Attempts
from headrace._base.deadline import FOR_EVER
from headrace._base.fork import check_process, current_process
from headrace._base.janitor import Janitor
from headrace._base.retry import Clock, RetryPolicy
from headrace._base.workers import Workers
from headrace._streaming.session_driver import SessionDriver
from headrace._values.refusals import invalid
from headrace._values.wire_errors import error_from_status
from headrace.errors import EngineLostError, HeadraceError, UnavailableError

Answer = TypeVar("Answer", bound=Message)

_MOVERS = 4
"""Requests that are handed over at a time."""


class BaseConnection:
    """The part that both clients' connections share: everything but waiting.

    Args:
        timeout: default timeout of calls in seconds; None: no limit.
        owner: owner of the requests, set in every message that has the field.
        policy: policy for retrying failed calls.
        handover: whether requests continue on another engine when theirs is lost.

    Attributes:
        patient: policy of the calls that hand a request over, for which nobody else would wait.
        hands_over: as `handover`.
    """

    _finalizer: weakref.finalize[Any, Any]
    """Closes the connection, once."""

    _transport: object

    def __init__(self, *, timeout: float | None, owner: str, policy: RetryPolicy, handover: bool) -> None:
        self.timeout = timeout
        self.policy = policy
        self.patient = replace(policy, retry_overload=True)
        self.hands_over = handover
        self.requests = OpenRequests()
        self._owner = owner

    def limit(self, timeout: float | None, *, waiting: float = 0.0) -> float | None:
        """Return the limit of a call in seconds: its timeout, or else the default one, plus `waiting`; None: none."""
        limit = self.timeout if timeout is None else check_timeout(timeout)
        return None if limit is None else limit + waiting

    def sign(self, request: Message) -> None:
        """Set the owner of a request message."""
        if self._owner and "owner" in request.DESCRIPTOR.fields_by_name:
            request.owner = self._owner  # type: ignore[attr-defined]

    def reconnect(self) -> None:
        """Make the next call over a new connection: the present one may be dead."""
        if isinstance(self._transport, Reconnecting):
            self._transport.reconnect()

    def address(self, request: Message, handle: str) -> str:
        """Set and return the handle under which a request now runs, in a message about it; "" = it is about none."""
        current = self.requests.current(handle)
        if handle and "handle" in request.DESCRIPTOR.fields_by_name:
            request.handle = current  # type: ignore[attr-defined]
        return current

    @property
    def closed(self) -> bool:
        """True if it was closed, or is being closed."""
        return not self._finalizer.alive

    def failed(self, failure: CallError, *, request_id: str, handle: str, asked: str) -> HeadraceError:
        """Return the exception for a failed call: CLIENT_CLOSED if closing ended it, however the transport failed."""
        error = error_from_status(failure.status, request_id=request_id, handle=handle)
        if self.closed and isinstance(error, UnavailableError):
            return error_from_status(client_closed(), request_id=request_id)
        moved = self.requests.moving(handle) or asked != self.requests.current(handle)
        if isinstance(error, EngineLostError) and handle and moved:
            # Another engine has it, or is about to have it, so one of the next attempts will find it there.
            return UnavailableError(error.message, reason=error.reason, request_id=request_id, details=error.details)
        return error


class Connection(BaseConnection):
    """A transport with its session, its open requests and its janitor, all of which it owns and closes.

    Args:
        transport: transport of the calls.
        timeout: default timeout of calls in seconds; None: no limit.
        owner: owner of the requests, set in every message that has the field.
        policy: policy for retrying failed calls.
        handover: whether requests continue on another engine when theirs is lost.
        clock: source of time.

    Attributes:
        movers: threads that hand requests over.
    """

    _transport: Transport

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float | None,
        owner: str,
        policy: RetryPolicy,
        handover: bool,
        clock: Clock,
    ) -> None:
        super().__init__(timeout=timeout, owner=owner, policy=policy, handover=handover)
        self.clock = clock
        self.janitor = Janitor()
        self.movers = Workers("headrace-handover", _MOVERS)
        self.session = SessionDriver(transport, owner=owner, client=client_name(), policy=policy, clock=clock)
        self._transport = transport
        self._process = current_process()
        self._finalizer = weakref.finalize(
            self, _shut_down, self.janitor, self.movers, self.session, transport, self._process
        )

    def call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        *,
        timeout: float | None,
        request_id: str = "",
        handle: str = "",
        before_retry: Callable[[int], None] | None = None,
        policy: RetryPolicy | None = None,
    ) -> Answer:
        """Return the response to a call, with retries. All calls are idempotent.

        Args:
            method: full name of the method.
            request: the request message.
            answer: class of the response.
            timeout: seconds for all attempts together; None: no limit. In any case the call fails if no server answers
                within the policy's `give_up_after`.
            request_id: id of the request that the call is about, for errors.
            handle: handle of that request; if it is unknown to the server, it was released.
            before_retry: called before each retry with its number, from 1.
            policy: retry policy; None: the connection's.

        Raises:
            InvalidRequestError: the timeout is not a number.
            HeadraceError: the failure of the last attempt.
            RuntimeError: this process is a fork of the one that made the connection.
        """
        self._prepare(request)
        attempts = Attempts(policy or self.policy, self.clock, check_timeout(timeout))
        while True:
            asked = self.address(request, handle)
            try:
                return cast(Answer, self._transport.unary(method, request, timeout=attempts.left))
            except CallError as failure:
                error, next_address = (
                    self.failed(failure, request_id=request_id, handle=handle, asked=asked),
                    failure.instead,
                )
            self.clock.sleep(attempts.pause(error, next_address))
            if before_retry is not None:
                before_retry(attempts.failures)

    def stream(self, method: str, request: Message, *, timeout: float | None = None) -> MessageStream:
        """Open a streaming call, without retries. Iterating raises CallError."""
        self._prepare(request)
        return self._transport.stream(method, request, timeout=timeout)

    @property
    def foreign(self) -> bool:
        """True if this is a copy of the connection in a forked process."""
        return self._process != current_process()

    def close(self) -> None:
        """Close the connection; blocked reads raise UnavailableError. Do nothing in a fork."""
        if self.foreign:
            return
        for feed in self.requests.feeds():
            feed.stop()
        self._finalizer()

    def _prepare(self, request: Message) -> None:
        check_process(self._process)
        if self.closed:
            raise error_from_status(client_closed())
        self.sign(request)


def check_timeout(timeout: Any) -> float | None:
    """Return a caller's timeout in seconds, between 0 and FOR_EVER; None stays None.

    Raises:
        InvalidRequestError: it is not a number of seconds.
    """
    if timeout is None:
        return None
    real = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if not real or not (timeout < 0 or timeout >= 0):  # NaN is neither.
        raise invalid("timeout", timeout, "a number of seconds, or None")
    return float(min(max(timeout, 0), FOR_EVER))


def client_name() -> str:
    """Return name and version of the client, for the server's logs."""
    from headrace import __version__

    return f"headrace {__version__}"


def _shut_down(janitor: Janitor, movers: Workers, session: SessionDriver, transport: Transport, process: int) -> None:
    # This runs too when a forked child exits; the threads and connections belong to the parent.
    if process == current_process():
        janitor.stop()
        movers.stop()
        session.close()
        transport.close()
