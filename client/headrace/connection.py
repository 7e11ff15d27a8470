"""Calls with retries over a transport: what all methods of a client share."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TypeVar, cast

from google.protobuf.message import Message

from headrace.deadline import Deadline
from headrace.errors import HeadraceError
from headrace.fork import check_process, current_process
from headrace.janitor import Janitor
from headrace.open_requests import OpenRequests
from headrace.retry import Clock, RetryPolicy, retry_delay, should_retry
from headrace.session_driver import SessionDriver
from headrace.transport import CallError, MessageStream, Transport, client_closed
from headrace.wire_errors import error_from_status

Answer = TypeVar("Answer", bound=Message)

logger = logging.getLogger(__name__)


class Connection:
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
        self.timeout = timeout
        self.policy = policy
        self.clock = clock
        self.janitor = Janitor()
        self.requests = OpenRequests()
        self.session = SessionDriver(transport, owner=owner, client=_name(), policy=policy, clock=clock)
        self._transport = transport
        self._owner = owner
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
            HeadraceError: the failure of the last attempt.
            RuntimeError: this is a fork of the process that made the connection.
        """
        self._prepare(request)
        policy = policy or self.policy
        deadline, patience = Deadline(self.clock, timeout), None
        failures = 0
        while True:
            try:
                return cast(Answer, self._transport.unary(method, request, timeout=deadline.left()))
            except CallError as failure:
                error = error_from_status(failure.status, request_id=request_id, handle=handle)
            failures += 1
            patience = patience or Deadline(self.clock, policy.give_up_after)
            self._pause(error, policy, failures, (deadline, patience))
            if before_retry is not None:
                before_retry(failures)

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
        if not self._finalizer.alive:
            raise error_from_status(client_closed())
        if self._owner and "owner" in request.DESCRIPTOR.fields_by_name:
            request.owner = self._owner  # type: ignore[attr-defined]

    def _pause(self, error: HeadraceError, policy: RetryPolicy, failures: int, limits: tuple[Deadline, ...]) -> None:
        if not should_retry(error, policy):
            raise error
        delay = retry_delay(error, policy, failures)
        left = min(seconds for limit in limits if (seconds := limit.left()) is not None)
        if delay >= left:
            raise error
        if failures == 1:
            logger.warning("%s Trying again for up to %.0f s.", error, left)
        self.clock.sleep(delay)


def _name() -> str:
    from headrace import __version__

    return f"headrace {__version__}"


def _shut_down(janitor: Janitor, session: SessionDriver, transport: Transport, process: int) -> None:
    # At the exit of a forked child too: what belongs to the parent is left alone.
    if process == current_process():
        janitor.stop()
        session.close()
        transport.close()
