"""Standard health of the gateway, derived from the state of its engines."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from grpc_health.v1 import health_pb2
from headrace_proto.pure.faults import is_fault
from headrace_proto.server.health import MODELS, OVERALL, REQUESTS, HealthServicer

from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.engines.view import serving
from headrace_gateway.faults import defect

_SHUTDOWN_SECONDS = 1.0


class GatewayHealth:
    """Keeps health up to date: RequestService and "" while any engine serves a model, ModelService while any answers.

    Args:
        pool: the engines.

    Attributes:
        serves: an engine serves a model, and the gateway takes requests.
    """

    def __init__(self, pool: EnginePool) -> None:
        self.servicer = HealthServicer()
        self.serves = False
        self._pool = pool
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to follow the engines. Everything is NOT_SERVING until one answers."""
        await self._update()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Report NOT_SERVING from now on. A watcher that does not read is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.serves = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await self.servicer.enter_graceful_shutdown()

    async def _follow(self) -> None:
        while True:
            changed = self._pool.changed()
            try:
                await self._update()
            except BaseException as error:  # Otherwise health would silently stay as it is.
                if not is_fault(error):
                    raise
                defect("health", error)
            await changed.wait()

    async def _update(self) -> None:
        views = [engine.view for engine in self._pool.reachable()]
        runs = any(serving(model) for view in views if not view.draining for model in view.models.values())
        self.serves = runs
        await self._set(OVERALL, runs)
        await self._set(REQUESTS, runs)
        await self._set(MODELS, bool(views))

    async def _set(self, service: str, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.servicer.set(service, status.SERVING if serving else status.NOT_SERVING)
