"""Standard health of the gateway, as its engines' states make it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from grpc_health.v1 import health_pb2
from headrace_proto.pure.faults import is_fault
from headrace_proto.server.health import MODELS, OVERALL, REQUESTS, HealthServicer

from headrace_gateway.faults import defect
from headrace_gateway.forwarding.engines import serving
from headrace_gateway.forwarding.pool import EnginePool

_GOODBYE_SECONDS = 1.0


class GatewayHealth:
    """SERVING for requests ("" and RequestService) while a model serves on one engine, for models while one answers.

    Args:
        pool: the engines.
    """

    def __init__(self, pool: EnginePool) -> None:
        self.servicer = HealthServicer()
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
        await self._set(OVERALL, runs)
        await self._set(REQUESTS, runs)
        await self._set(MODELS, bool(views))

    async def _set(self, service: str, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.servicer.set(service, status.SERVING if serving else status.NOT_SERVING)
