"""Lookup of start keys over all engines. A key is a client's request_id and the number of its hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

import grpc
from headrace_proto.v1 import request_service_pb2 as wire

from headrace_gateway import status
from headrace_gateway.access import callers
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.forwarding.fan_out import Outcome, ask_each
from headrace_gateway.forwarding.forward import Forward

Found = Outcome[wire.GetRequestResponse]


@dataclass(frozen=True)
class _Known:
    """An engine that knows a request_id, with its latest hand-over there."""

    engine: Engine
    handover: int
    released: bool


class Keys:
    """Finds the engine that knows a key by asking all of them; serializes the starts of one key.

    Args:
        pool: the engines.
    """

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._turns: WeakValueDictionary[tuple[str, str, int], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, request: wire.StartRequestRequest) -> AsyncIterator[bool]:
        """Hold the key's lock during a start, after the earlier starts with that key that came through here.

        Otherwise the lookup of a key could overtake the start that it is about.
        Yield True if an engine may know the key: this is a retry, or another start with the key was in progress here.
        """
        if not request.request_id:
            yield False
            return
        lock = self._turns.setdefault((request.owner, request.request_id, request.handover), asyncio.Lock())
        repeats = lock.locked()
        async with lock:
            yield repeats or request.attempt > 0

    async def holder(self, forward: Forward, request: wire.StartRequestRequest) -> Engine | None:
        """Return the engine on which an earlier attempt of a start arrived; one with a later hand-over will do."""
        known = _known(await self._ask(forward, request.request_id))
        fitting = [one for one in known if one.handover >= request.handover]
        return min(fitting, key=lambda one: (one.handover, one.released)).engine if fitting else None

    async def latest_holder(self, forward: Forward, request_id: str) -> Engine:
        """Return the engine with the highest hand-over of a request that is not released.

        Raises:
            CallError: UNKNOWN_REQUEST, ENGINE_UNREACHABLE, or the failure of an engine that may have it.
        """
        outcomes = await self._ask(forward, request_id)
        held = [one for one in _known(outcomes) if not one.released]
        if held:
            return max(held, key=lambda one: one.handover).engine
        raise self._nowhere(outcomes, request_id)

    async def _ask(self, forward: Forward, request_id: str) -> list[Found]:
        """Ask every reachable engine; each waits for its starts in progress."""
        await self._pool.settle()
        question = wire.GetRequestRequest(request_id=request_id, owner=callers.current().owner)

        async def ask(engine: Engine) -> wire.GetRequestResponse:
            answer: wire.GetRequestResponse = await forward.ask(engine, engine.requests.GetRequest, question)
            return answer

        return await ask_each(self._pool.reachable(), ask)

    def _nowhere(self, outcomes: list[Found], request_id: str) -> status.CallError:
        failures = [outcome.error for outcome in outcomes if outcome.error is not None]
        for failure in failures:
            if failure.code is not grpc.StatusCode.NOT_FOUND:
                return failure
        for engine in self._pool.engines:
            if not engine.view.reachable:
                return engine.unreachable(reached=True)
        released = [failure for failure in failures if _released_handover(failure) is not None]
        unknown = status.unknown_request(request_id)
        return max(released, key=lambda failure: _released_handover(failure) or 0, default=unknown)


def _known(outcomes: list[Found]) -> list[_Known]:
    known = []
    for outcome in outcomes:
        if outcome.answer is not None:
            known.append(_Known(outcome.engine, outcome.answer.request.request.handover, released=False))
        elif outcome.error is not None and (handover := _released_handover(outcome.error)) is not None:
            known.append(_Known(outcome.engine, handover, released=True))
    return known


def _released_handover(failure: status.CallError) -> int | None:
    """Return the hand-over of a released request whose key its engine remembers; None if the key is unknown."""
    handover = failure.facts.get("handover", "") if failure.reason == "UNKNOWN_REQUEST" else ""
    return int(handover) if handover.isdecimal() else None
