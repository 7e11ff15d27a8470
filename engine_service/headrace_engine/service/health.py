"""Standard health of the engine."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2
from headrace_proto.pure.faults import trace
from headrace_proto.server.health import MODELS, OVERALL, REQUESTS, HealthServicer
from headrace_proto.server.logs import logger

from headrace_engine.engine.engine import Engine
from headrace_engine.service.failures import closing

_log = logger(__name__)

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Keeps a health servicer up to date with an engine.

    "" and RequestService are SERVING while a model is RUNNING, its core at work, and the engine takes requests;
    ModelService once `start` was called. Every other name is NOT_FOUND.
    """

    def __init__(self, engine: Engine) -> None:
        self.servicer = HealthServicer(self._now)
        self._engine = engine
        self._refusing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Report the current state, and start to follow the engine."""
        await self.servicer.set(MODELS, _SERVING)
        await self._update()
        self._task = asyncio.create_task(self._follow())
        self._task.add_done_callback(_report_end)

    async def refuse(self) -> None:
        """Report NOT_SERVING for every service, for good: the server is shutting down."""
        self._refusing = True
        await self.servicer.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Stop following the engine."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        async with closing(self._engine.watch_model("")) as views:
            async for _ in views:
                await self._update()

    async def _update(self) -> None:
        for service in (OVERALL, REQUESTS):
            await self.servicer.set(service, self._status())

    def _now(self, service: str) -> int | None:
        return self._status() if service in (OVERALL, REQUESTS) and not self._refusing else None

    def _status(self) -> int:
        serving = any(view.serving for view in self._engine.list_models())
        status: int = _SERVING if serving and not self._engine.draining else _NOT_SERVING
        return status


def _report_end(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("health_lost", kind=type(error).__name__, exception=trace(error))
