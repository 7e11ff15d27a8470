"""EngineService: server info, statistics and tokenizers of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from headrace_proto.v1 import engine_service_pb2 as wire
from headrace_proto.v1.engine_service_pb2_grpc import EngineServiceServicer
from headrace_proto.v1.stat_pb2 import EngineStat

from headrace_engine.engine.engine import Engine
from headrace_engine.errors import InvalidArgument
from headrace_engine.service.convert.addressing import check_addressed
from headrace_engine.service.convert.callers import caller
from headrace_engine.service.convert.codec import read_seconds
from headrace_engine.service.convert.prompt import tokenize_prompt
from headrace_engine.service.convert.results import WARNING, engine_stats, server_info_response
from headrace_engine.service.convert.sizes import MAX_IDS, by_size, refuse_more

DEFAULT_INTERVAL = 1.0
MIN_INTERVAL = 0.1

Sleep = Callable[[float], Awaitable[None]]


class EngineServicer(EngineServiceServicer):
    """Each method is one call of the engine; exceptions become statuses in `failures`.

    Args:
        sleep: waits between the responses of WatchEngineStat.
    """

    def __init__(self, engine: Engine, sleep: Sleep = asyncio.sleep) -> None:
        self._engine = engine
        self._sleep = sleep

    async def GetServerInfo(self, request: wire.GetServerInfoRequest, context: Any) -> wire.GetServerInfoResponse:
        """Return name, version and features of the engine."""
        return server_info_response(self._engine.server_info())

    async def GetEngineStat(self, request: wire.GetEngineStatRequest, context: Any) -> wire.GetEngineStatResponse:
        """Return statistics by model."""
        check_addressed(self._engine.name, request.engine_ids)
        return wire.GetEngineStatResponse(stats=self._stats(request.model_name))

    async def WatchEngineStat(
        self, request: wire.WatchEngineStatRequest, context: Any
    ) -> AsyncIterator[wire.WatchEngineStatResponse]:
        """Send statistics once an interval, until the client leaves."""
        check_addressed(self._engine.name, request.engine_ids)
        interval = _interval(request)
        while True:
            yield wire.WatchEngineStatResponse(stats=self._stats(request.model_name))
            await self._sleep(interval)

    async def Tokenize(self, request: wire.TokenizeRequest, context: Any) -> wire.TokenizeResponse:
        """Return the token ids of a prompt."""
        prompt, add_special_tokens = await by_size(self._engine.pools, tokenize_prompt, request)
        answer = await self._engine.tokenize(request.model_name, prompt, add_special_tokens, caller())
        warnings = map(WARNING.to_wire, answer.warnings)
        return wire.TokenizeResponse(token_ids=answer.token_ids, rendered_text=answer.rendered_text, warnings=warnings)

    async def Detokenize(self, request: wire.DetokenizeRequest, context: Any) -> wire.DetokenizeResponse:
        """Return the text of token ids."""
        refuse_more("token_ids", len(request.token_ids), MAX_IDS, "ids")
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        answer = await self._engine.detokenize(request.model_name, request.token_ids, skip, caller())
        return wire.DetokenizeResponse(text=answer.text, pieces=answer.pieces)

    def _stats(self, model_name: str) -> list[EngineStat]:
        return engine_stats(self._engine.engine_stats(model_name), self._engine.server_info())


def _interval(request: wire.WatchEngineStatRequest) -> float:
    interval = read_seconds(request.interval) if request.HasField("interval") else DEFAULT_INTERVAL
    if interval < MIN_INTERVAL:
        raise InvalidArgument.field("interval", f"= {interval:g} s is too short; allowed: at least {MIN_INTERVAL:g} s")
    return interval
