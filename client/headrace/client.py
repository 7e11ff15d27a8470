"""The synchronous client."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any

from headrace_proto.wire.transport import Transport

from headrace._api.connection import Connection, check_timeout
from headrace._api.release import try_release
from headrace._api.start_calls import StartCalls
from headrace._base.closing import Closing
from headrace._base.retry import Clock, RetryPolicy, SystemClock
from headrace._transport.transport import open_transport
from headrace.errors import HeadraceError, UnavailableError

logger = logging.getLogger(__name__)


class Client(StartCalls, Closing):
    """A client of a gateway, of an engine, or of an engine in this process.

    It connects with the first call. It is thread-safe, but must not be used in a fork of the process that created it.
    As a context manager it stops and releases, on exit, the requests that were started through it, and closes.

    Args:
        address: "host:port", or several separated by commas ("gw1:7070,gw2:7070"), of which the next one is used when
            one cannot be reached; "unix:/path"; "inprocess:" for an engine in this process (package headrace-engine);
            or a `Transport`.
        timeout: default timeout in seconds of calls that do not wait for a model or request to change; None: no limit.
        owner: owner of the requests. An engine accepts any name. A gateway cannot authenticate owners yet: it treats
            all clients as one owner and rejects a name (InvalidRequestError). Default "".
        retry: policy for retrying failed calls and broken streams.
        handover: continue started requests on another engine when theirs is lost or shuts down: the queues go on where
            they were, and the handle stays the same. False: such queues raise `EngineLostError`, or end as DRAINED.
        clock: source of time, for tests.
        **options: options of the transport. For gRPC: `api_key` (str) and `credentials` (from
            `grpc.ssl_channel_credentials`). For "inprocess:": those of the engine.

    Raises:
        ValueError: the address cannot be parsed, or the timeout is not a number.
        TypeError: the transport has no such option.
        ImportError: "inprocess:" without the package headrace-engine.
        RuntimeError: this process was forked from one that used gRPC.
    """

    def __init__(
        self,
        address: str | Transport = "localhost:7070",
        *,
        timeout: float | None = 60.0,
        owner: str = "",
        retry: RetryPolicy | None = None,
        handover: bool = True,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        limit = check_timeout(timeout)
        transport = open_transport(address, options) if isinstance(address, str) else address
        self._connection = Connection(
            transport,
            timeout=limit,
            owner=owner,
            policy=retry or RetryPolicy(),
            handover=handover,
            clock=clock or SystemClock(),
        )
        dropped = self._connection.requests.client_dropped
        weakref.finalize(self, self._connection.janitor.submit, dropped).atexit = False

    def close(self) -> None:
        """Close the client and its connections; blocked reads raise UnavailableError. Closing again does nothing.

        Requests continue on the engine until their leases expire, unless another client reads them.
        """
        self._connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, UnavailableError):
                self._try_release_all()
            else:
                self._release_all()
        finally:
            self.close()

    def _release_all(self) -> None:
        if self._connection.foreign:
            return
        for handle in self._connection.requests.unreleased():
            try:
                self._release_leaving(handle)
            except HeadraceError as error:
                logger.warning("could not release the remaining requests, which end with their leases: %s", error)
                return

    def _try_release_all(self) -> None:
        """Release what one attempt per request can. The server is unreachable, as the exception being raised says."""
        if self._connection.foreign:
            return
        with suppress(HeadraceError):
            for handle in self._connection.requests.unreleased():
                try_release(self._connection, handle)
