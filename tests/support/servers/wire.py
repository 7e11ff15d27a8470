"""Raw calls, without a client: the engine counts a reader only while a call lasts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from headrace._transport.methods import METHODS
from headrace._transport.transport import open_transport
from headrace._values.wire_errors import error_from_status
from headrace_proto.wire.transport import CallError, Transport

from support.clocks.waiting import LIMIT

_REQUESTS = "headrace.v1.RequestService"


class Wire:
    """Calls of RequestService with the fields of their messages.

    Args:
        target: an address, or a transport, which the caller still owns and closes.
    """

    def __init__(self, target: str | Transport) -> None:
        self._owned = isinstance(target, str)
        self._transport = open_transport(target, {}) if isinstance(target, str) else target

    def close(self) -> None:
        """Close the transport, if it was opened here."""
        if self._owned:
            self._transport.close()

    def call(self, name: str, **fields: Any) -> Any:
        """Return the response of a call. Raises the client's exception for its status."""
        method = f"{_REQUESTS}/{name}"
        try:
            return self._transport.unary(method, METHODS[method].request(**fields), timeout=LIMIT)
        except CallError as error:
            raise error_from_status(error.status) from error

    def start(self, model_name: str, ids: list[int], *, config: dict[str, Any] | None = None, **fields: Any) -> Any:
        """Start a request; return the AcceptedRequest."""
        more = {"model_name": model_name, "token_ids": {"ids": ids}, "config": config or {}, **fields}
        return self.call("StartRequest", **more).request

    def state(self, handle: str) -> Any:
        """Return the state from ListRequests, which does not count as a reader; None if the request is released."""
        found = [state for state in self.call("ListRequests").requests if state.request.handle == handle]
        return found[0] if found else None

    def read(self, handle: str, from_position: int = 0) -> list[Message]:
        """Return all GeneratedElements responses, to the end. Raises the client's exception for the status."""
        return list(self.stream("GeneratedElements", handle=handle, from_position=from_position))

    def stream(self, name: str, **fields: Any) -> Iterator[Any]:
        """Yield the responses of a streaming call. Raises the client's exception for its status."""
        method = f"{_REQUESTS}/{name}"
        try:
            yield from self._transport.stream(method, METHODS[method].request(**fields), timeout=LIMIT)
        except CallError as error:
            raise error_from_status(error.status) from error
