"""Calls with retries over a transport: what all methods of a client share."""

from __future__ import annotations

import numbers
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from headrace_proto.wire.transport import CallError, MessageStream, Transport, client_closed

from headrace._api.open_requests import OpenRequests
from headrace._base.attempts import Attempts
from headrace._base.deadline import FOR_EVER
from headrace._base.fork import check_process, current_process
from headrace._base.janitor import Janitor
from headrace._base.retry import Clock, RetryPolicy
from headrace._streaming.session_driver import SessionDriver
from headrace._values.fill import invalid
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError, UnavailableError

Answer = TypeVar("Answer", bound=Message)


class BaseConnection:
    """What there is to know about a connection, whatever waits for its calls.

    Args:
        timeout: limit of a call that brings none of its own, in seconds; None: none.
        owner: whose requests they are; set in every message that has the field.
        policy: how failed calls are tried again.
    """

    _finalizer: weakref.finalize[Any, Any]
    """Ends everything, once."""

    def __init__(self, *, timeout: float | None, owner: str, policy: RetryPolicy) -> None:
        self.timeout = timeout
        self.policy = policy
        self.requests = OpenRequests()
        self._owner = owner

    def limit(self, timeout: float | None, *, waiting: float = 0.0) -> float | None:
        """The limit of a call that ends by itself: its own, else the connection's; beside what it waits on purpose."""
        limit = self.timeout if timeout is None else check_timeout(timeout)
        return None if limit is None else limit + waiting

    def sign(self, request: Message) -> None:
        """Says whose request it is."""
        if self._owner and "owner" in request.DESCRIPTOR.fields_by_name:
            request.owner = self._owner  # type: ignore[attr-defined]

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is being closed."""
        return not self._finalizer.alive

    def failed(self, failure: CallError, *, request_id: str, handle: str) -> HeadraceError:
        """What the failure of a call means. One that is cut by closing says so, however its transport puts it."""
        error = error_from_status(failure.status, request_id=request_id, handle=handle)
        if self.closed and isinstance(error, UnavailableError):
            return error_from_status(client_closed(), request_id=request_id)
        return error


class Connection(BaseConnection):
    """A transport, and what is going on over it.

    Args:
        transport: carries the calls; closed with the connection.
        timeout: limit of a call that brings none of its own, in seconds; None: none.
        owner: whose requests they are; set in every message that has the field.
        policy: how failed calls are tried again.
        clock: time.
    """

    def __init__(
        self, transport: Transport, *, timeout: float | None, owner: str, policy: RetryPolicy, clock: Clock
    ) -> None:
        super().__init__(timeout=timeout, owner=owner, policy=policy)
        self.clock = clock
        self.janitor = Janitor()
        self.session = SessionDriver(transport, owner=owner, client=client_name(), policy=policy, clock=clock)
        self._transport = transport
        self._process = current_process()
        self._finalizer = weakref.finalize(self, _shut_down, self.janitor, self.session, transport, self._process)

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
        """The answer to a call, tried again while that makes sense and time allows. All calls are idempotent.

        Args:
            method: full name.
            request: the question.
            answer: class of the answer.
            timeout: for all attempts together, in seconds; None: none. Whatever it is, the call fails when nobody
                answers for as long as the policy says.
            request_id: the request it is about, for errors.
            handle: the same; an unknown one is a released one.
            before_retry: told the number of the attempt that follows, from 1.
            policy: another one than the connection's.

        Raises:
            InvalidRequestError: the timeout is no number.
            HeadraceError: the failure of the last attempt.
            RuntimeError: this is a fork of the process that made the connection.
        """
        self._prepare(request)
        attempts = Attempts(policy or self.policy, self.clock, check_timeout(timeout))
        while True:
            try:
                return cast(Answer, self._transport.unary(method, request, timeout=attempts.left))
            except CallError as failure:
                error, instead = self.failed(failure, request_id=request_id, handle=handle), failure.instead
            self.clock.sleep(attempts.pause(error, instead))
            if before_retry is not None:
                before_retry(attempts.failures)

    def stream(self, method: str, request: Message, *, timeout: float | None = None) -> MessageStream:
        """The answers to a streaming call, tried once. Iterating raises CallError."""
        self._prepare(request)
        return self._transport.stream(method, request, timeout=timeout)

    @property
    def foreign(self) -> bool:
        """Whether this is a copy of it in a fork."""
        return self._process != current_process()

    def close(self) -> None:
        """Ends everything; blocked reads wake. Does nothing in a fork."""
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
    """The limit of a call, out of what callers give; FOR_EVER and more: none.

    Raises:
        InvalidRequestError: it is no number of seconds.
    """
    if timeout is None:
        return None
    real = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if not real or not (timeout < 0 or timeout >= 0):  # NaN is neither.
        raise invalid("timeout", timeout, "a number of seconds, or None")
    return float(min(max(timeout, 0), FOR_EVER))


def client_name() -> str:
    """Name and version, for the server's logs."""
    from headrace import __version__

    return f"headrace {__version__}"


def _shut_down(janitor: Janitor, session: SessionDriver, transport: Transport, process: int) -> None:
    # At the exit of a forked child too: what belongs to the parent is left alone.
    if process == current_process():
        janitor.stop()
        session.close()
        transport.close()
