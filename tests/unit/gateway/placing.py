"""Starts, and where a gateway puts them."""

from __future__ import annotations

from typing import Any

from headrace_proto.v1 import request_service_pb2 as wire
from unit.gateway.conftest import Front


def request(request_id: str = "", **more: Any) -> wire.StartRequestRequest:
    """A start of a request to the model smol."""
    return wire.StartRequestRequest(model_name="smol", request_id=request_id, text="Hello", **more)


async def placed(front: Front, **more: Any) -> str:
    """Name of the engine that a start went to."""
    answer = await front.requests.StartRequest(request(**more))
    return str(answer.request.handle).partition("/")[0]


async def all_placed(front: Front, count: int) -> list[str]:
    """Names of the engines that so many starts went to, in order."""
    return [await placed(front) for _ in range(count)]
