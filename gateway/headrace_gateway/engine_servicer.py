"""EngineService of the gateway: server info, statistics of its engines, and their tokenizers."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from headrace_proto.server.interceptor import Context
from headrace_proto.v1 import engine_service_pb2 as wire
from headrace_proto.v1 import engine_service_pb2_grpc, stat_pb2

from headrace_gateway import API_VERSION, __version__, status
from headrace_gateway.access import callers
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.forwarding.fan_out import answers, ask_each, knowing_model
from headrace_gateway.forwarding.forward import Forward
from headrace_gateway.forwarding.routing import Router

DEFAULT_INTERVAL = 1.0
SHORTEST_INTERVAL = 0.1


class EngineServicer(engine_service_pb2_grpc.EngineServiceServicer):
    """Reports the gateway, the statistics of its engines, and tokenizes with their models.

    Args:
        name: of the gateway.
        instance_id: random id of this run of the gateway.
        pool: the engines.
        router: finds engines that have a model.
        calls: knows whether the gateway is stopping.
    """

    def __init__(self, name: str, instance_id: str, pool: EnginePool, router: Router, calls: LiveCalls) -> None:
        self._name = name
        self._pool = pool
        self._router = router
        self._calls = calls
        self._instance_id = instance_id
        self._start_time = Timestamp()
        self._start_time.GetCurrentTime()

    async def GetServerInfo(self, request: wire.GetServerInfoRequest, context: Context) -> wire.GetServerInfoResponse:
        """Return facts of the gateway, and of its engines as last polled."""
        await self._pool.settle()
        return wire.GetServerInfoResponse(
            role=wire.SERVER_ROLE_GATEWAY,
            name=self._name,
            instance_id=self._instance_id,
            api_version=API_VERSION,
            build=f"headrace-gateway {__version__}",
            features=self._features(),
            start_time=self._start_time,
            draining=self._calls.draining,
            engines=[_engine_info(engine) for engine in self._pool.engines],
        )

    async def GetEngineStat(self, request: wire.GetEngineStatRequest, context: Context) -> wire.GetEngineStatResponse:
        """Return statistics: of the engines named, which must all answer, or of those that answer."""
        return wire.GetEngineStatResponse(stats=await self._stats(request, Forward(context)))

    async def WatchEngineStat(self, request: wire.WatchEngineStatRequest, context: Context) -> None:
        """Send the same statistics once an interval."""
        interval = _interval(request)
        question = wire.GetEngineStatRequest(model_name=request.model_name, engine_ids=request.engine_ids)
        forward = Forward(context)
        while True:
            await context.write(wire.WatchEngineStatResponse(stats=await self._stats(question, forward)))
            await asyncio.sleep(interval)

    async def Tokenize(self, request: wire.TokenizeRequest, context: Context) -> Any:
        """Ask an engine that has the model."""
        return await self._by_tokenizer("Tokenize", request, context)

    async def Detokenize(self, request: wire.DetokenizeRequest, context: Context) -> Any:
        """Ask an engine that has the model."""
        return await self._by_tokenizer("Detokenize", request, context)

    async def _by_tokenizer(self, method: str, request: Any, context: Context) -> Any:
        forward = Forward(context)

        async def ask(engine: Engine) -> Any:
            return await forward.ask(engine, getattr(engine.facts, method), request)

        return await self._router.with_tokenizer(request.model_name, ask)

    async def _stats(self, request: wire.GetEngineStatRequest, forward: Forward) -> list[stat_pb2.EngineStat]:
        question = wire.GetEngineStatRequest(model_name=request.model_name)

        async def ask(engine: Engine) -> Any:
            return await forward.ask(engine, engine.facts.GetEngineStat, question)

        outcomes = await ask_each(self._pool.addressed(request.engine_ids), ask)
        if request.engine_ids:
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
        may_see = callers.current().may_see
        stats = (stat for answer in answers(knowing_model(outcomes)) for stat in answer.stats)
        return [stat for stat in stats if may_see(stat.model_name)]

    def _features(self) -> list[str]:
        """Return the features common to all reachable engines, since a call may go to any of them."""
        sets = [set(engine.view.info.features) for engine in self._pool.reachable() if engine.view.info is not None]
        return sorted(set.intersection(*sets)) if sets else []


def _engine_info(engine: Engine) -> wire.EngineInfo:
    view = engine.view
    info = wire.EngineInfo(engine=engine.name, reachable=view.reachable)
    if view.info is not None:
        info.instance_id, info.draining = view.info.instance_id, view.info.draining
        info.api_version, info.build = view.info.api_version, view.info.build
    return info


def _interval(request: wire.WatchEngineStatRequest) -> float:
    if not request.HasField("interval"):
        return DEFAULT_INTERVAL
    seconds = request.interval.ToNanoseconds() / 1e9
    if seconds < SHORTEST_INTERVAL:
        raise status.invalid_field(
            "interval", f"= {seconds:g} s is too short; allowed: at least {SHORTEST_INTERVAL:g} s"
        )
    return seconds
