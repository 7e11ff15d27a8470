"""Routing: a call goes to the engine that its handle names, or to the least loaded engine that can take it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc
import structlog
from headrace_proto.v1 import model_pb2

from headrace_gateway import status
from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.forwarding.pool import EnginePool
from headrace_gateway.forwarding.processors import no_processing, processing
from headrace_gateway.status import CallError

T = TypeVar("T")

log = structlog.get_logger()

MOVES_ON = frozenset(
    {
        "MODEL_NOT_RUNNING",
        "UNKNOWN_MODEL",
        "DRAINING",
        "CORE_RESTARTING",
        "MODEL_STARTING",
        "QUEUE_FULL",
        "RESULTS_FULL",
        "DEADLINE_NOT_MET",
    }
)
"""Reasons of refusals after which another engine is tried: nothing was started."""

_NO_TOKENIZER = frozenset({"UNKNOWN_MODEL", "MODEL_NOT_RUNNING", "MODEL_STARTING"})
"""Reasons of an engine that has no tokenizer of the model at the moment."""

_FAULTS = frozenset({"ENGINE_FAULT", "ENGINE_UNREACHABLE"})
"""Reasons that speak against an engine."""

_OVERLOAD = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""Codes of load-related refusals, in order of preference when one is returned."""


@dataclass(frozen=True)
class Handle:
    """The parts of a handle "engine/instance/id".

    Attributes:
        engine: name of the engine in the gateway's list.
        instance: id of the engine's run that has the request.
        id: id of the request within that run.
    """

    engine: str
    instance: str
    id: str

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parse a handle.

        Raises:
            CallError: UNKNOWN_REQUEST if it does not have three parts.
        """
        if not is_handle(text):
            raise status.unknown_request(text)
        return cls(*text.split("/"))


def is_handle(text: str) -> bool:
    """True if a text has the three parts of a handle."""
    parts = text.split("/")
    return len(parts) == 3 and all(parts)


class Router:
    """Finds engines for calls.

    Args:
        pool: the engines.
    """

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._turns = itertools.count(1)

    def of_handle(self, handle: str) -> Engine:
        """Return the engine that a handle names.

        Raises:
            CallError: UNKNOWN_REQUEST if the text is not a handle, UNKNOWN_ENGINE.
        """
        return self._pool.named(Handle.parse(handle).engine)

    def knows(self, handle: str) -> bool:
        """True if a text is a handle that names an engine of the list."""
        return is_handle(handle) and self._pool.has(Handle.parse(handle).engine)

    async def place(
        self, model_name: str, begin: Callable[[Engine], Awaitable[T]], key: str = "", processors: Sequence[str] = ()
    ) -> T:
        """Start a request on the least loaded engine that runs the model; among equals, round robin.

        With a key, on the engine that every gateway chooses for it, whatever the load. An engine whose core is being
        replaced is tried last: its core may be back by then.

        Args:
            model_name: the model.
            begin: starts the request on an engine. Called again with another engine after a refusal in MOVES_ON, or
                if the call did not get through.
            key: start key, so that concurrent starts through several gateways meet on one engine; "": none.
            processors: names of the logits processors that the engine must have.

        Raises:
            CallError: the engine's failure; a load-related refusal if all refused; or why there is no engine.
        """
        refusals: list[CallError] = []
        tried: set[Engine] = set()
        while (engine := await self._choose(model_name, tried, key, processors)) is not None:
            tried.add(engine)
            engine.breaker.trying()
            try:
                with engine.load.placing():
                    answer = await begin(engine)
                engine.breaker.succeeded()
                return answer
            except CallError as error:
                _judge(engine, error)
                if error.reached and error.reason not in MOVES_ON:
                    raise
                refusals.append(error)
                engine.wake.set()
        overload = [refusal for refusal in refusals if refusal.reached and refusal.code in _OVERLOAD]
        if overload:
            raise min(overload, key=lambda refusal: _OVERLOAD.index(refusal.code))
        raise no_engine_for(self._pool.engines, model_name, processors)

    async def with_tokenizer(self, model_name: str, ask: Callable[[Engine], Awaitable[T]]) -> T:
        """Ask an engine that has the model, in whatever state; then the next, while calls do not get through.

        Raises:
            CallError: the engine's failure, UNKNOWN_MODEL or NO_ENGINE.
        """
        having = self._having(model_name)
        if not having:
            await self._pool.refresh()
            having = self._having(model_name)
        refusal: CallError | None = None
        for engine in having:
            engine.turn = next(self._turns)
            try:
                return await ask(engine)
            except CallError as error:
                if error.reached and error.reason not in _NO_TOKENIZER:
                    raise
                refusal = error if error.reached and error.reason != "UNKNOWN_MODEL" else refusal
        raise refusal or no_engine_for(self._pool.engines, model_name)

    def _having(self, model_name: str) -> list[Engine]:
        having = [engine for engine in self._pool.reachable() if model_name in engine.view.models]
        return sorted(having, key=lambda engine: (not engine.view.runs(model_name), engine.turn))

    async def _choose(
        self, model_name: str, tried: Collection[Engine], key: str, processors: Sequence[str]
    ) -> Engine | None:
        """Choose an engine. State may be a second old, so poll all engines before giving up."""
        engine = self._first(model_name, tried, key, processors)
        if engine is None:
            await self._pool.refresh()
            engine = self._first(model_name, tried, key, processors)
        if engine is not None:
            engine.turn = next(self._turns)
        return engine

    def _first(self, model_name: str, tried: Collection[Engine], key: str, processors: Sequence[str]) -> Engine | None:
        running = processing(self._pool.engines, model_name, processors)
        able = [engine for engine in running if engine.view.takes(model_name) and engine not in tried]
        return min(able, key=lambda engine: _rank(engine, model_name, key), default=None)


def _rank(engine: Engine, model_name: str, key: str) -> tuple[bool, bool, int, int]:
    """Sort key of engines: the lowest gets the request."""
    order = _digest(engine.name, key) if key else engine.load.requests
    return not engine.breaker.closed, not engine.view.serves(model_name), order, engine.turn


def _judge(engine: Engine, error: CallError) -> None:
    """Count a failed start for or against the engine: a refusal with a reason is an answer, unless it is a fault."""
    if error.reason and error.reason not in _FAULTS:
        engine.breaker.succeeded()
    elif engine.breaker.failed():
        log.warning("engine_passed_over", engine=engine.name, reason=error.reason or error.code.name)


def _digest(name: str, key: str) -> int:
    """Return the rendezvous hash, equal in every gateway: if an engine is lost, only its own keys move."""
    return int.from_bytes(hashlib.blake2b(f"{name}/{key}".encode(), digest_size=8).digest())


def no_engine_for(engines: Collection[Engine], model_name: str, processors: Sequence[str] = ()) -> CallError:
    """Return why no engine can take a request to the model.

    Retryable (NO_ENGINE, MODEL_STARTING) if no engine answers, if an engine ran the model with these logits processors
    when it last answered, or is about to run it; otherwise the model must be started or installed, or the request
    changed.
    """
    coming = [engine.view.state(model_name) for engine in engines if engine.view.coming(model_name)]
    taken = any(engine.view.takes(model_name) for engine in engines)
    if taken and not processing(engines, model_name, processors):
        # An engine that does not run it yet may have them.
        return (
            status.model_starting(model_name, coming[0]) if coming else no_processing(engines, model_name, processors)
        )
    views = [engine.view.models.get(model_name) for engine in engines if engine.view.reachable]
    present = [view for view in views if view is not None]
    if not any(engine.view.reachable for engine in engines):
        return status.no_engine(model_name, "no engine answers")
    if any(engine.view.runs(model_name) for engine in engines):
        return status.no_engine(model_name, "the engine that ran it does not answer, or is stopping")
    if coming:
        return status.model_starting(model_name, max(coming, key=_nearness))
    if present:
        nearest = max(present, key=lambda view: _nearness(view.state))
        return status.model_not_running(model_name, nearest.state, nearest.failure.message)
    if any(model_name in engine.view.models for engine in engines):
        return status.no_engine(model_name, "the engine that has it does not answer")
    if any(engine.view.may_have(model_name) for engine in engines if not engine.view.reachable):
        return status.no_engine(model_name, "an engine that may have it was not reached yet")
    return status.unknown_model(model_name, (name for engine in engines for name in engine.view.models))


_TOWARDS_RUNNING = (
    model_pb2.MODEL_STATE_RELEASED,
    model_pb2.MODEL_STATE_FAILED,
    model_pb2.MODEL_STATE_STOPPED,
    model_pb2.MODEL_STATE_STOPPING,
    model_pb2.MODEL_STATE_INSTALLING,
    model_pb2.MODEL_STATE_INITIAL,
    model_pb2.MODEL_STATE_STARTING,
    model_pb2.MODEL_STATE_RUNNING,
)


def _nearness(state: model_pb2.ModelState) -> int:
    return _TOWARDS_RUNNING.index(state) if state in _TOWARDS_RUNNING else -1
