"""Routing: a call goes to the engine that its handle names, or to the least loaded engine that can take it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from typing import TypeVar

import grpc
import structlog

from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.engines.prefixes import PromptKeys
from headrace_gateway.forwarding.absence import no_engine_for
from headrace_gateway.forwarding.handles import Handle, is_handle
from headrace_gateway.forwarding.processors import processing
from headrace_gateway.forwarding.ranking import Wanted, rank, with_prefix
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
        "UNKNOWN_LORA",
    }
)
"""Reasons of refusals after which another engine is tried: nothing was started."""

_NO_ADAPTER = "UNKNOWN_LORA"
"""Reason of an engine that has not loaded a request's adapter."""

OWNER_LIMIT = "limit"
"""Fact of refusals by a limit of the request's owner, which holds on all engines together."""

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


class Router:
    """Finds engines for calls.

    Args:
        pool: the engines.
        affinity: send a prompt where its beginning was computed before, unless that engine has more to do.
    """

    def __init__(self, pool: EnginePool, *, affinity: bool = True) -> None:
        self._pool = pool
        self._affinity = affinity
        self._turns = itertools.count(1)
        self._keys = PromptKeys()

    def of_handle(self, handle: str) -> Engine:
        """Return the engine that a handle names.

        Raises:
            CallError: UNKNOWN_REQUEST if the text is not a handle, UNKNOWN_ENGINE.
        """
        return self._pool.named(Handle.parse(handle).engine)

    def learn(self, prompt: Sequence[bytes], keys: bytes) -> None:
        """Record the keys of a prompt's blocks, which an engine returned when it was started."""
        self._keys.learn(prompt, keys)

    def knows(self, handle: str) -> bool:
        """True if a text is a handle that names an engine of the list."""
        return is_handle(handle) and self._pool.has(Handle.parse(handle).engine)

    async def place(
        self,
        model_name: str,
        begin: Callable[[Engine], Awaitable[T]],
        key: str = "",
        processors: Sequence[str] = (),
        prompt: Sequence[bytes] = (),
        adapter: str = "",
        *,
        counted: bool = True,
    ) -> T:
        """Start a request on the least loaded engine that runs the model; among equals, round robin.

        One that has computed the beginning of the prompt is preferred where that makes nobody wait: it has no queue,
        and at most ALLOWANCE requests more than the least loaded one.
        With a key, on the engine that every gateway chooses for it, whatever the load. An engine whose core is being
        replaced is tried last: its core may be back by then.

        Args:
            model_name: the model.
            begin: starts it on an engine; again on another after a refusal in MOVES_ON, or a call that got nowhere.
            key: start key, so that concurrent starts through several gateways meet on one engine; "": none.
            processors: names of the logits processors that the engine must have.
            prompt: digests of the prompt's beginnings.
            adapter: its adapter; "": none. Without a key, engines that have refused it lately are tried last.
            counted: it adds to the engine's load.

        Raises:
            CallError: the engine's failure; a load-related refusal if all refused; or why there is no engine.
        """
        refusals: list[CallError] = []
        tried: set[Engine] = set()
        wanted = Wanted(model_name, key, processors, prompt if self._affinity and not key else (), adapter)
        while (engine := await self._choose(wanted, tried)) is not None:
            tried.add(engine)
            engine.breaker.trying()
            try:
                with engine.load.placing() if counted else nullcontext():
                    answer = await begin(engine)
                engine.breaker.succeeded()
                engine.lacked.forget(model_name, adapter)
                engine.prefixes.hold(prompt, engine.view.instance_id, engine.load.capacity)
                return answer
            except CallError as error:
                _judge(engine, error, wanted)
                if error.reached and (error.reason not in MOVES_ON or OWNER_LIMIT in error.facts):
                    raise
                refusals.append(error)
                engine.wake.set()
        raise _foremost(refusals) or no_engine_for(self._pool.engines, model_name, processors)

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

    async def _choose(self, wanted: Wanted, tried: Collection[Engine]) -> Engine | None:
        """Choose an engine. State may be a second old, so poll all engines before giving up."""
        engine = self._first(wanted, tried)
        if engine is None:
            await self._pool.refresh()
            engine = self._first(wanted, tried)
        if engine is not None:
            engine.turn = next(self._turns)
        return engine

    def _first(self, wanted: Wanted, tried: Collection[Engine]) -> Engine | None:
        running = processing(self._pool.engines, wanted.model_name, wanted.processors)
        able = [engine for engine in running if engine.view.takes(wanted.model_name) and engine not in tried]
        best = min(able, key=lambda engine: rank(engine, wanted), default=None)
        if best is None or not wanted.prompt:
            return best
        return with_prefix(best, able, wanted, self._keys.of(wanted.prompt))


def _foremost(refusals: Sequence[CallError]) -> CallError | None:
    """Return the refusal to pass on where all engines refused: of a load, or of an adapter; None: neither."""
    overload = [refusal for refusal in refusals if refusal.reached and refusal.code in _OVERLOAD]
    if overload:
        return min(overload, key=lambda refusal: _OVERLOAD.index(refusal.code))
    return next((refusal for refusal in refusals if refusal.reason == _NO_ADAPTER), None)


def _judge(engine: Engine, error: CallError, wanted: Wanted) -> None:
    """Count a failed start for or against the engine: a refusal with a reason is an answer, unless it is a fault."""
    if error.reason == _NO_ADAPTER:
        engine.lacked.note(wanted.model_name, wanted.adapter)
    if error.reason and error.reason not in _FAULTS:
        engine.breaker.succeeded()
    elif engine.breaker.failed():
        log.warning("engine_passed_over", engine=engine.name, reason=error.reason or error.code.name)
