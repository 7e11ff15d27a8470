"""Forwarding of a client's call to an engine: deadline, metadata, failures, and engine names in answers."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
from headrace_proto.pure import tracing
from headrace_proto.server.interceptor import Context

from headrace_gateway import status
from headrace_gateway.access import callers
from headrace_gateway.access.access import Metadata
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.liveness import LOST_SECONDS
from headrace_gateway.engines.rewrite import readdress

PASSED_METADATA = frozenset({tracing.HEADER})

CALLER_KEY = "headrace-caller"
"""Metadata by which an engine distinguishes the gateway's clients, for fair shares. Clients cannot set it."""

PROMPT_KEYS = "headrace-prompt-keys"
"""Metadata that asks an engine for the keys of a prompt's blocks."""

_SALT = secrets.token_bytes(16)

_BROKEN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
_LOST_STATUS = "Internal error from Core"


class Forward:
    """Calls engines on behalf of one call of a client.

    A call to an engine carries the client's remaining time, its trace context, and an anonymous id: of its owner, or,
    without API keys, of its connection. An API key stays here. Cancelling the task that waits for the call cancels it
    at the engine too.

    Args:
        context: the client's call.
        asking: a key of further metadata for the engines; "": none.
    """

    def __init__(self, context: Context, asking: str = "") -> None:
        left = cast("float | None", context.time_remaining())  # None: the client set no deadline
        self._expires = None if left is None else time.monotonic() + left
        sent = dict(context.invocation_metadata() or ())
        asked = ((asking, "1"),) if asking else ()
        self._own = ((CALLER_KEY, _anonymous(callers.current().owner or context.peer())), *asked)
        # What has another form is no trace, and is left out.
        self._trace = str(sent[tracing.HEADER]) if tracing.is_traceparent(sent.get(tracing.HEADER)) else ""

    @property
    def metadata(self) -> Metadata:
        """Metadata that is sent to engines beside the message."""
        return (*(((tracing.HEADER, self._trace),) if self._trace else ()), *self._own)

    @contextmanager
    def starting(self, request: Any) -> Iterator[None]:
        """Make a span of a block that starts a request; engines get its context."""
        attributes = {"headrace.model": request.model_name, "headrace.handover": getattr(request, "handover", 0)}
        if request_id := getattr(request, "request_id", ""):
            attributes["headrace.request_id"] = request_id
        with tracing.span("gateway.start", self._trace, attributes) as self._trace:
            yield

    def remaining(self) -> float | None:
        """Return the seconds until the client's deadline; None without one."""
        return None if self._expires is None else max(self._expires - time.monotonic(), 0.0)

    async def ask(
        self, engine: Engine, method: Any, request: Any, patience: float = LOST_SECONDS, more: Metadata = ()
    ) -> Any:
        """Make a unary call.

        Args:
            engine: engine to call.
            method: method of its stub.
            request: sent unchanged.
            patience: seconds without a sign of life of an engine that does not answer polls, after which to give up.
            more: metadata for this engine.

        Returns:
            The answer, with the engine's name in the gateway's list filled in.

        Raises:
            CallError: the engine's failure, or ENGINE_UNREACHABLE.
        """
        await engine.reach()
        call = method(request, timeout=self.remaining(), metadata=(*self.metadata, *more))
        # The engine's liveness may cancel the call while this task waits for it, and has no hold of it afterwards.
        with engine.liveness.waiting(call, patience):
            try:
                answer = await call
            except grpc.aio.AioRpcError as error:
                raise failure_of(engine, error) from error
            except asyncio.CancelledError:
                # `give_up` may have cancelled the call, or the engine has left the list: it is then unreachable.
                if _cancelling():
                    raise
                raise engine.unreachable(reached=True) from None
        return readdress(answer, engine.name)

    async def stream(self, engine: Engine, method: Any, request: Any, more: Metadata = ()) -> AsyncGenerator[Any, None]:
        """Make a server-streaming call, as `ask`, message by message. Close it (`aclosing`) to cancel the call."""
        await engine.reach()
        call = method(request, timeout=self.remaining(), metadata=(*self.metadata, *more))
        try:
            async for message in call:
                yield readdress(message, engine.name)
        except grpc.aio.AioRpcError as error:
            raise failure_of(engine, error) from error
        except asyncio.CancelledError:
            if _cancelling():
                raise
            raise engine.unreachable(reached=True) from None
        finally:
            # Also when the generator is closed: otherwise the engine would send on, to nobody.
            call.cancel()


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _anonymous(peer: str) -> str:
    """Return an id of a client's connection that reveals nothing else about it."""
    return hashlib.blake2b(peer.encode(), key=_SALT, digest_size=12).hexdigest()


def failure_of(engine: Engine, error: grpc.aio.AioRpcError) -> status.CallError:
    """Convert the failure of a call to an engine; mark the engine unreachable if the connection broke.

    A status without a reason of ours did not come from the engine: the connection broke, the process was stopped, or
    the gateway wrote to a stream that the engine had just ended, in which case gRPC loses the true status.
    """
    failure = status.from_rpc(error)
    broken = failure.code in _BROKEN or error.details() == _LOST_STATUS
    if not failure.reason and broken:
        engine.suspect(f"{error.code().name}: {error.details()}")
        return engine.unreachable(reached=True)
    readdress(failure.status, engine.name)
    return failure
