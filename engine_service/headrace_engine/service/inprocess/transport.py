"""An engine inside its caller's process: the client's in-process transport.

Calls go to the same servicers as over gRPC, with the same mapping of failures. Messages cross as bytes, so that
neither side sees later changes by the other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable, Coroutine
from dataclasses import fields
from functools import partial
from typing import Any, Literal, TypeVar

import grpc
from google.protobuf.message import Message
from headrace_proto.pure.suggestions import did_you_mean
from headrace_proto.server.logs import configure_library
from headrace_proto.wire.transport import CallError, MessageChannel, MessageStream, client_closed

from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.engine import Engine
from headrace_engine.process import launch_process, launch_thread, make_runner
from headrace_engine.process.serialize import run_serializer
from headrace_engine.service.convert.status import plain_status
from headrace_engine.service.inprocess.aio import AsyncInProcessTransport
from headrace_engine.service.inprocess.call import Call, Conversation, Rpc, rpc_table

C = TypeVar("C", bound=Call)
T = TypeVar("T", bound=Conversation)


def connect(*, core: Literal["thread", "process"] = "thread", **options: Any) -> InProcessTransport:
    """Start an engine in this process and connect to it.

    Args:
        core: run each model's core in a thread of this process, or in a process of its own.
        **options: fields of `EngineOptions`.

    Raises:
        TypeError: unknown option.
        ValueError: invalid `core` or option.
    """
    if core not in ("thread", "process"):
        raise ValueError(f'core = {core!r}; allowed: "thread", "process"')
    known = [field.name for field in fields(EngineOptions)]
    for name in options:
        if name not in known:
            close = did_you_mean(name, ["retry", "timeout", *known])
            raise TypeError(f'Client("inprocess:") has no keyword "{name}"{close}')
    configure_library()
    settings = EngineOptions(**options)
    launcher = _launcher(core, settings)
    return InProcessTransport(lambda: Engine(settings, launcher, serializer=run_serializer))


def _launcher(core: str, settings: EngineOptions) -> CoreLauncher:
    """Return the launcher of cores, with the logits processors that are functions of this process."""
    processes = {name: each for name, each in settings.logits_processors.items() if callable(each)}
    if core == "thread":
        return partial(launch_thread, make=partial(make_runner, processes=processes))
    if processes:
        names = ", ".join(processes)
        raise ValueError(f'logits_processors: {names}: functions need core = "thread"; give files to core = "process"')
    return launch_process


_open: set[InProcessTransport] = set()
"""Transports to close before the interpreter exits."""


class InProcessTransport:
    """Carries calls to an engine that runs on an event loop thread of its own. A `Transport`.

    Owns the loop, its thread and the engine, from construction until `close`.

    Args:
        make_engine: creates the engine; called on that loop.
    """

    def __init__(self, make_engine: Callable[[], Engine]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-engine", daemon=True)
        # Guards `_closed`, and the adding of calls: `close` holds it until it has ended all that there are.
        self._closing = threading.Lock()
        self._closed = False
        self._calls: set[Call] = set()
        self._thread.start()
        _open.add(self)
        try:
            self._engine, self._rpcs = self._run(_open_engine(make_engine))
        except BaseException:
            self._stop_loop()
            raise

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """Make a unary call.

        Raises:
            CallError: the call failed.
        """
        call = self.begin(Call, method, request, timeout)
        try:
            return next(call)
        except BaseException:
            call.cancel()
            raise

    def stream(self, method: str, request: Message, *, timeout: float | None) -> MessageStream:
        """Begin a server-streaming call; return at once.

        Raises:
            CallError: the transport was closed, or there is no such method.
        """
        return self.begin(Call, method, request, timeout)

    def session(self, method: str, *, timeout: float | None = None) -> MessageChannel:
        """Begin a bidirectional streaming call; return at once.

        Raises:
            CallError: the transport was closed, or there is no such method.
        """
        return self.converse(Conversation, method, timeout)

    def for_asyncio(self) -> AsyncInProcessTransport:
        """Return the same transport for callers in an event loop."""
        return AsyncInProcessTransport(self)

    def close(self) -> None:
        """Cancel all calls, close the engine, and end its thread."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._run(self._shut_down())
            self._stop_loop()

    def begin(self, kind: type[C], method: str, request: Message, timeout: float | None) -> C:
        """Begin a call with one request; `kind` is the class of the call. Raise CallError if it cannot begin."""
        with self._closing:
            rpc = self._rpc(method, converses=False)
            return self._start(kind(rpc, request.SerializeToString(), timeout, self._loop))

    def converse(self, kind: type[T], method: str, timeout: float | None) -> T:
        """Begin a call with a stream of requests. Raise CallError if it cannot begin."""
        with self._closing:
            return self._start(kind(self._rpc(method, converses=True), timeout, self._loop))

    def _rpc(self, method: str, *, converses: bool) -> Rpc:
        if self._closed:
            raise CallError(client_closed())
        rpc: Rpc | None = self._rpcs.get(method)
        if rpc is None or rpc.converses is not converses:
            kind = "method with a stream of requests" if converses else "method with one request"
            raise CallError(plain_status(grpc.StatusCode.UNIMPLEMENTED, f"there is no {kind} named {method}"))
        return rpc

    def _start(self, call: C) -> C:
        self._calls.add(call)
        call.start(done=self._calls.discard)
        return call

    async def _shut_down(self) -> None:
        for call in list(self._calls):
            call.close()
            await call.ended.wait()
        await self._engine.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # starts go on after their calls are cancelled
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop_loop(self) -> None:
        _open.discard(self)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _close_all() -> None:
    for transport in list(_open):
        transport.close()


# The public atexit runs too late: closing an engine needs pool threads, which can no longer be started then. These
# hooks run in reverse order, so the pool's own hook must be registered first: hence the import above.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]


async def _open_engine(make_engine: Callable[[], Engine]) -> tuple[Engine, dict[str, Rpc]]:
    engine = make_engine()
    await engine.start()
    return engine, rpc_table(engine)
