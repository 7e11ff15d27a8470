"""Which engine a call goes to: the one that its handle names, or the least loaded one that can take it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc
from headrace_proto.v1 import model_pb2

from headrace_gateway import status
from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.forwarding.pool import EnginePool
from headrace_gateway.forwarding.processors import no_processing, processing
from headrace_gateway.status import CallError

T = TypeVar("T")

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
"""Reasons of refusals that started nothing and that another engine may not have."""

_NOT_READ = frozenset({"UNKNOWN_MODEL", "MODEL_NOT_RUNNING", "MODEL_STARTING"})
"""Reasons of an engine that has no tokenizer of the model now."""

_PASSING = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""Codes of refusals for the load of an engine; the first of them that there is is told."""


@dataclass(frozen=True)
class Handle:
    """The parts of a handle "engine/instance/id".

    Attributes:
        engine: name of the engine in the gateway's list.
        instance: the start of it that holds the logs.
        id: which request.
    """

    engine: str
    instance: str
    id: str

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Takes a handle apart.

        Raises:
            CallError: UNKNOWN_REQUEST if it does not have three parts.
        """
        if not is_handle(text):
            raise status.unknown_request(text)
        return cls(*text.split("/"))


def is_handle(text: str) -> bool:
    """Whether a text has the three parts of a handle."""
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
        """The engine that a handle names.

        Raises:
            CallError: UNKNOWN_REQUEST for what is no handle, UNKNOWN_ENGINE.
        """
        return self._pool.named(Handle.parse(handle).engine)

    def knows(self, handle: str) -> bool:
        """Whether a text is a handle that names an engine of the list."""
        return is_handle(handle) and self._pool.has(Handle.parse(handle).engine)

    async def place(
        self, model_name: str, begin: Callable[[Engine], Awaitable[T]], key: str = "", processors: Sequence[str] = ()
    ) -> T:
        """Starts a request on the least loaded engine that runs the model, equally loaded ones by turns.

        With a key, on the one that every gateway chooses for it, whatever the load. One whose core is being replaced is
        asked only after those that serve: perhaps its core is back already.

        Args:
            model_name: the model.
            begin: starts it there. Called again with another engine after a refusal that another one may not have,
                or when the call did not get through.
            key: what may be started elsewhere at the same time, and is to meet it; "": nothing.
            processors: names of the logits processors that the engine has to have.

        Raises:
            CallError: what the engine that began answered; a refusal for the load of all; or why there is no engine.
        """
        refusals: list[CallError] = []
        tried: set[Engine] = set()
        while (engine := await self._choose(model_name, tried, key, processors)) is not None:
            tried.add(engine)
            try:
                with engine.load.placing():
                    return await begin(engine)
            except CallError as error:
                if error.reached and error.reason not in MOVES_ON:
                    raise
                refusals.append(error)
                engine.wake.set()
        passing = [refusal for refusal in refusals if refusal.reached and refusal.code in _PASSING]
        if passing:
            raise min(passing, key=lambda refusal: _PASSING.index(refusal.code))
        raise no_place(self._pool.engines, model_name, processors)

    async def with_tokenizer(self, model_name: str, ask: Callable[[Engine], Awaitable[T]]) -> T:
        """Asks an engine that has the model, in whatever state; the next one if that does not get through.

        Raises:
            CallError: what the engine answered, UNKNOWN_MODEL or NO_ENGINE.
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
                if error.reached and error.reason not in _NOT_READ:
                    raise
                refusal = error if error.reached and error.reason != "UNKNOWN_MODEL" else refusal
        raise refusal or no_place(self._pool.engines, model_name)

    def _having(self, model_name: str) -> list[Engine]:
        having = [engine for engine in self._pool.reachable() if model_name in engine.view.models]
        return sorted(having, key=lambda engine: (not engine.view.runs(model_name), engine.turn))

    async def _choose(
        self, model_name: str, tried: Collection[Engine], key: str, processors: Sequence[str]
    ) -> Engine | None:
        """What is known may be a second old, so nothing is refused before the engines were asked anew."""
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


def _rank(engine: Engine, model_name: str, key: str) -> tuple[bool, int, int]:
    """The lower, the rather a request to the model goes there."""
    order = _digest(engine.name, key) if key else engine.load.requests
    return not engine.view.serves(model_name), order, engine.turn


def _digest(name: str, key: str) -> int:
    """The same in every gateway. With the engine's name: where that one is lost, other keys stay where they are."""
    return int.from_bytes(hashlib.blake2b(f"{name}/{key}".encode(), digest_size=8).digest())


def no_place(engines: Collection[Engine], model_name: str, processors: Sequence[str] = ()) -> CallError:
    """Why no engine takes a request to the model.

    Where an engine ran the model, with these logits processors, when it last answered, or is about to run it, and where
    none answers, trying again makes sense; otherwise the model has to be started or installed, or the request be
    another.
    """
    coming = [engine.view.state(model_name) for engine in engines if engine.view.coming(model_name)]
    taken = any(engine.view.takes(model_name) for engine in engines)
    if taken and not processing(engines, model_name, processors):
        # One that does not run yet may have them.
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
