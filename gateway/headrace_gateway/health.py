"""Standard health of the gateway, as its engines' states make it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from grpc_health.v1 import health, health_pb2
from headrace_proto.pure.faults import is_fault

from headrace_gateway.engines import serving
from headrace_gateway.faults import defect
from headrace_gateway.pool import EnginePool

REQUESTS = "headrace.v1.RequestService"
MODELS = "headrace.v1.ModelService"

_GOODBYE_SECONDS = 1.0


class _Servicer(health.aio.HealthServicer):  # type: ignore[misc]
    """The library's, with the one call that it lacks."""

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> Any:  # noqa: N802
        """The status of each service."""
        asked = {name: health_pb2.HealthCheckRequest(service=name) for name in ("", REQUESTS, MODELS)}
        return health_pb2.HealthListResponse(
            statuses={name: await self.Check(check, context) for name, check in asked.items()}
        )


class GatewayHealth:
    """SERVING for requests ("" and RequestService) while a model serves on one engine, for models while one answers.

    Args:
        pool: the engines.
    """

    def __init__(self, pool: EnginePool) -> None:
        self.servicer = _Servicer()
        self._pool = pool
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to follow the engines; NOT_SERVING until one answered."""
        await self._show()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """NOT_SERVING from now on, whatever the engines do. Does not wait for a watcher that does not read."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self.servicer.enter_graceful_shutdown()

    async def _follow(self) -> None:
        while True:
            changed = self._pool.changed()
            try:
                await self._show()
            except BaseException as error:  # Nobody else would hear of it, and health would stay as it is.
                if not is_fault(error):
                    raise
                defect("health", error)
            await changed.wait()

    async def _show(self) -> None:
        views = [engine.view for engine in self._pool.reachable()]
        runs = any(serving(model) for view in views if not view.draining for model in view.models.values())
        await self._set("", runs)
        await self._set(REQUESTS, runs)
        await self._set(MODELS, bool(views))

    async def _set(self, service: str, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.servicer.set(service, status.SERVING if serving else status.NOT_SERVING)
