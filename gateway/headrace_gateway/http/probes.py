"""Probes of health, for whatever starts and balances gateways."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse


class Probes:
    """Answers probes.

    Args:
        serves: says whether an engine serves a model.
    """

    def __init__(self, serves: Callable[[], bool]) -> None:
        self._serves = serves

    async def alive(self, request: Request) -> Any:
        """Answer that the gateway runs."""
        return PlainTextResponse("ok\n")

    async def ready(self, request: Request) -> Any:
        """Answer whether requests can be served: 200, or 503 while no engine serves a model or the gateway drains."""
        if self._serves():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("no engine serves a model\n", HTTPStatus.SERVICE_UNAVAILABLE)
