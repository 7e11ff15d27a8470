"""WatchModel over several engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import grpc
from headrace_proto.server.interceptor import Context
from headrace_proto.v1 import model_pb2
from headrace_proto.v1 import model_service_pb2 as wire

from headrace_gateway.access import callers
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.forwarding.forward import Forward
from headrace_gateway.status import CallError


class ModelWatch:
    """One client's watch of a model, or of all, on several engines.

    Engines that join the gateway's list, or get the model, are watched from then on, unless the client named engines.
    One that leaves the list is watched as long as it can be reached.

    Args:
        pool: signals when a lost engine may be back, and when engines join.
        forward: calls the engines.
        model_name: name of the model; "" for all.
        context: call of the client, to which changes are written.
    """

    def __init__(self, pool: EnginePool, forward: Forward, model_name: str, context: Context) -> None:
        self._pool = pool
        self._forward = forward
        self._model_name = model_name
        self._context = context
        # A task follows each engine, and the client's stream takes one message at a time.
        self._writing = asyncio.Lock()
        self._lost: set[Engine] = set()
        self._watched: set[Engine] = set()

    async def run(self, engines: Sequence[Engine], *, named: bool) -> None:
        """Write changes until the model is released on all engines; for all models, until the client leaves.

        Args:
            engines: engines to watch from the beginning.
            named: the client named them; no others are watched.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._watch(engines, group)
                await self._refresh(self._new_ones())
                while not named and (self._watched or not self._model_name):
                    changed = self._pool.changed()
                    self._watch(self._new_ones(), group)
                    await changed.wait()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _watch(self, engines: Sequence[Engine], group: asyncio.TaskGroup) -> None:
        self._watched.update(engines)
        for engine in engines:
            # The group owns the tasks: with the client, or the first failure, all streams end.
            group.create_task(self._follow(engine))

    def _new_ones(self) -> list[Engine]:
        """Return engines that have the model, as last polled, and are not watched."""
        others = [engine for engine in self._pool.engines if engine not in self._watched]
        return [engine for engine in others if not self._model_name or self._model_name in engine.view.models]

    async def _refresh(self, engines: Sequence[Engine]) -> None:
        """Poll engines that had the model when they were last polled, and may not have it any more."""
        if self._model_name:
            await asyncio.gather(*(engine.refresh() for engine in engines if self._pool.polls(engine)))

    async def _follow(self, engine: Engine) -> None:
        while not await self._ended(engine) and await self._back(engine):
            pass
        await self._refresh([engine])
        self._watched.discard(engine)
        self._pool.notify()

    async def _ended(self, engine: Engine) -> bool:
        """Follow one stream to its end. Return False if the engine is to be watched again."""
        question = wire.WatchModelRequest(model_name=self._model_name)
        try:
            async with aclosing(self._forward.stream(engine, engine.models.WatchModel, question)) as changes:
                async for change in changes:
                    self._lost.discard(engine)
                    if callers.current().may_see(change.model.model_name):
                        await self._send(change.model)
        except CallError as error:
            return await self._failed(engine, error)
        return bool(self._model_name)

    async def _failed(self, engine: Engine, error: CallError) -> bool:
        lost = model_pb2.ModelInfo(model_name=self._model_name, engine=engine.name)
        if error.reason == "UNKNOWN_MODEL":
            lost.state = model_pb2.MODEL_STATE_RELEASED
            await self._send(lost)
            return True
        if error.code is not grpc.StatusCode.UNAVAILABLE:
            raise error
        lost.failure.CopyFrom(error.status)
        if engine not in self._lost:  # an engine that is shutting down refuses until it is gone
            self._lost.add(engine)
            await self._send(lost)
        return False

    async def _send(self, info: model_pb2.ModelInfo) -> None:
        async with self._writing:
            await self._context.write(wire.WatchModelResponse(model=info))

    async def _back(self, engine: Engine) -> bool:
        """Wait for a poll that reaches the engine. False: it has left the list, and is not polled any more."""
        while self._pool.polls(engine):
            changed = self._pool.changed()
            await changed.wait()
            if engine.view.reachable:
                return True
        return False
