"""Standard health: the names of the services, and their servicer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

OVERALL = ""
REQUESTS = "headrace.v1.RequestService"
MODELS = "headrace.v1.ModelService"


def as_set(service: str) -> None:
    """Report each service with the status that was set."""


class HealthServicer(aio.HealthServicer):  # type: ignore[misc]
    """Answers checks with the current status; watchers get a change soon after.

    Args:
        now: returns the current status of a service; None: as it was set.
    """

    def __init__(self, now: Callable[[str], int | None] = as_set) -> None:
        super().__init__()
        self._now = now

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802
        """Return the status of one service."""
        status = self._now(request.service)
        return (
            await super().Check(request, context) if status is None else health_pb2.HealthCheckResponse(status=status)
        )

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> Any:  # noqa: N802
        """Return the status of each service, a method that the library's servicer does not implement."""
        checks = {name: health_pb2.HealthCheckRequest(service=name) for name in (OVERALL, REQUESTS, MODELS)}
        return health_pb2.HealthListResponse(
            statuses={name: await self.Check(check, context) for name, check in checks.items()}
        )
