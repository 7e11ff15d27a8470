"""The synchronous client."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from headrace_proto.wire.transport import Transport

from headrace._api.connection import Connection, check_timeout
from headrace._api.giving_back import GIVE_BACK_TIMEOUT, give_back
from headrace._api.request_calls import RequestCalls
from headrace._base.retry import Clock, RetryPolicy, SystemClock
from headrace._transport.transport import open_transport
from headrace.errors import HeadraceError, UnavailableError

logger = logging.getLogger(__name__)


class Client(RequestCalls):
    """A connection to Headrace: to a gateway, to an engine, or to an engine in this process.

    Safe to use from several threads; not to be used in a fork of the process that made it. As a context manager it
    stops and releases at the exit what was started through it and not released, then closes.

    Args:
        address: "host:port", several separated by commas ("gw1:7070,gw2:7070": another one is used when one cannot be
            reached), "unix:/path", "inprocess:" for an engine in this process (package headrace-engine), or a
            `Transport`.
        timeout: limit in seconds of calls that bring none of their own and do not wait for something to happen; None:
            none.
        owner: whose requests they are. An engine believes whoever reaches it; a gateway has no API keys to tell owners
            by yet, so all its clients are one owner and it refuses a name (InvalidRequestError). Default "".
        retry: how failed calls and broken streams are tried again.
        clock: time, for tests.
        **options: of the transport. gRPC: `api_key` (str) and `credentials` (from `grpc.ssl_channel_credentials`).
            "inprocess:": those of the engine.

    Raises:
        ValueError: the address cannot be parsed, or the timeout is no number; the message names it.
        TypeError: the transport has no such option.
        ImportError: "inprocess:" needs the package headrace-engine.
        RuntimeError: this process was forked from one that used gRPC.

    No connection is made before the first call.
    """

    def __init__(
        self,
        address: str | Transport = "localhost:7070",
        *,
        timeout: float | None = 60.0,
        owner: str = "",
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        limit = check_timeout(timeout)
        transport = open_transport(address, options) if isinstance(address, str) else address
        self._connection = Connection(
            transport, timeout=limit, owner=owner, policy=retry or RetryPolicy(), clock=clock or SystemClock()
        )
        dropped = self._connection.requests.client_dropped
        weakref.finalize(self, self._connection.janitor.ask, dropped).atexit = False

    def close(self) -> None:
        """Ends all calls and connections; waiting reads wake and raise UnavailableError.

        Requests go on, and are stopped by their leases if nobody comes for them. Closing twice is once.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, UnavailableError):
                self._leave_all()
            else:
                self._release_all()
        finally:
            self.close()

    def _release_all(self) -> None:
        if self._connection.foreign:
            return
        for handle in self._connection.requests.unreleased():
            try:
                self._release_once(handle, GIVE_BACK_TIMEOUT)
            except HeadraceError as error:
                logger.warning("could not release the remaining requests, which end with their leases: %s", error)
                return

    def _leave_all(self) -> None:
        """Nobody answers, which the caller is being told: what one question does not release is left to its lease."""
        if self._connection.foreign:
            return
        with suppress(HeadraceError):
            for handle in self._connection.requests.unreleased():
                give_back(self._connection, handle)
