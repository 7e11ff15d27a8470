"""What of a client's call goes on to an engine, and what comes back: deadline, metadata, failures, names in answers."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import grpc

from headrace_gateway import status
from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.forwarding.rewrite import readdress

PASSED_METADATA = frozenset({"authorization", "traceparent"})

CALLER_KEY = "headrace-caller"
"""What an engine tells this gateway's clients apart by, for their shares of what all share: a client cannot set it."""

_SALT = secrets.token_bytes(16)

Context = grpc.aio.ServicerContext[Any, Any]

_BROKEN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
_LOST_STATUS = "Internal error from Core"


class Forward:
    """Calls engines on behalf of one call of a client.

    A call to an engine carries what is left of the client's deadline, if it has one, the client's key and trace, and a
    name for the client's connection.
    Cancelling the task that waits for it cancels it at the engine too.

    Args:
        context: the client's call.
    """

    def __init__(self, context: Context) -> None:
        left = cast("float | None", context.time_remaining())  # None: the client set no deadline
        self._expires = None if left is None else time.monotonic() + left
        sent = context.invocation_metadata() or ()
        passed = tuple((key, value) for key, value in sent if key in PASSED_METADATA)
        self.metadata = (*passed, (CALLER_KEY, _anonymous(context.peer())))

    def remaining(self) -> float | None:
        """Seconds until the client's deadline; None without one."""
        return None if self._expires is None else max(self._expires - time.monotonic(), 0.0)

    async def ask(self, engine: Engine, method: Any, request: Any) -> Any:
        """Makes a unary call.

        Args:
            engine: whom to call.
            method: the stub's method.
            request: sent as it is.

        Returns:
            The answer, with the engine's name in this gateway's list.

        Raises:
            CallError: what the engine answered, or ENGINE_UNREACHABLE.
        """
        await engine.reach()
        try:
            answer = await method(request, timeout=self.remaining(), metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            raise failure_of(engine, error) from error
        return readdress(answer, engine.name)

    async def stream(self, engine: Engine, method: Any, request: Any) -> AsyncGenerator[Any, None]:
        """Makes a server-streaming call; as `ask`, message by message. Close it (`aclosing`) to cancel the call."""
        await engine.reach()
        call = method(request, timeout=self.remaining(), metadata=self.metadata)
        try:
            async for message in call:
                yield readdress(message, engine.name)
        except grpc.aio.AioRpcError as error:
            raise failure_of(engine, error) from error
        finally:
            call.cancel()


def _anonymous(peer: str) -> str:
    """A name of a client's connection that tells nothing else of it."""
    return hashlib.blake2b(peer.encode(), key=_SALT, digest_size=12).hexdigest()


def failure_of(engine: Engine, error: grpc.aio.AioRpcError) -> status.CallError:
    """What a broken call to an engine means.

    A status without a reason of ours was made on the way: the connection broke, the process was stopped, or what this
    gateway wrote met a stream that the engine had just ended, in which case gRPC forgets the true status.
    """
    failure = status.from_rpc(error)
    broken = failure.code in _BROKEN or error.details() == _LOST_STATUS
    if not failure.reason and broken:
        engine.suspect(f"{error.code().name}: {error.details()}")
        return status.engine_unreachable(engine.name, reached=True)
    readdress(failure.status, engine.name)
    return failure
