"""Standard health, told by the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

from headrace_engine.child_logs import trace
from headrace_engine.engine.engine import Engine
from headrace_engine.service.failures import closing
from headrace_engine.service.logs import logger

OVERALL = ""
REQUESTS = "headrace.v1.RequestService"
MODELS = "headrace.v1.ModelService"

_log = logger(__name__)

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class _Servicer(aio.HealthServicer):  # type: ignore[misc]
    """Answers checks with what holds at that moment; watchers hear of a change soon after.

    Args:
        now: the status of a service that follows the engine; None: as it was set.
    """

    def __init__(self, now: Callable[[str], int | None]) -> None:
        super().__init__()
        self._now = now

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802
        """The status of one service."""
        status = self._now(request.service)
        return (
            await super().Check(request, context) if status is None else health_pb2.HealthCheckResponse(status=status)
        )

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> Any:  # noqa: N802
        """The status of each service."""
        asked = {name: health_pb2.HealthCheckRequest(service=name) for name in (OVERALL, REQUESTS, MODELS)}
        return health_pb2.HealthListResponse(
            statuses={name: await self.Check(check, context) for name, check in asked.items()}
        )


class Health:
    """Keeps a health servicer in step with an engine.

    "" and RequestService are SERVING while a model is RUNNING, its core at work, and the engine takes requests;
    ModelService once `start` was called. Every other name is NOT_FOUND.
    """

    def __init__(self, engine: Engine) -> None:
        self.servicer = _Servicer(self._now)
        self._engine = engine
        self._refusing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow the engine; what holds now is told when this returns."""
        await self.servicer.set(MODELS, _SERVING)
        await self._tell()
        self._task = asyncio.create_task(self._follow())
        self._task.add_done_callback(_report_end)

    async def refuse(self) -> None:
        """NOT_SERVING for every service, for good: the server is going away."""
        self._refusing = True
        await self.servicer.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        async with closing(self._engine.watch_model("")) as views:
            async for _ in views:
                await self._tell()

    async def _tell(self) -> None:
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
