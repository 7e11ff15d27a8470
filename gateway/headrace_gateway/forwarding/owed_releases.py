"""Releases for requests on engines that count as lost: sent should the engine answer again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import grpc
from headrace_proto.v1 import request_service_pb2 as wire

from headrace_gateway.engines.engine import Engine

MOST = 10_000
"""Releases kept for one engine; the oldest ones beyond are left to the leases of their requests."""

_SECONDS = 10.0
_ATTEMPTS = 10
_PAUSE = 0.2  # seconds between two of them
_UNANSWERED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}

Metadata = tuple[tuple[str, str | bytes], ...]


class OwedReleases:
    """Releases by clients for lost engines. Each engine's are sent by a task, which waits until it is reached."""

    def __init__(self) -> None:
        self._owed: dict[Engine, OrderedDict[tuple[str, str], Metadata]] = {}
        self._tasks: dict[Engine, asyncio.Task[None]] = {}

    def add(self, engine: Engine, request: wire.ReleaseRequestRequest, metadata: Metadata) -> None:
        """Release a request once its engine can be reached, with the metadata of its client's call."""
        owed = self._owed.setdefault(engine, OrderedDict())
        owed[request.owner, request.handle] = metadata
        if len(owed) > MOST:
            del owed[next(iter(owed))]
        if engine not in self._tasks:
            self._tasks[engine] = asyncio.create_task(self._send(engine))

    async def leave(self, engine: Engine) -> None:
        """Drop what is owed to an engine that has left the list, even if another takes its name.

        Should it join again, the leases of the requests have ended them, or will.
        """
        self._owed.pop(engine, None)
        if (task := self._tasks.pop(engine, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Drop what is still owed."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _send(self, engine: Engine) -> None:
        owed = self._owed[engine]
        while owed:
            owner, handle = key = next(iter(owed))
            request = wire.ReleaseRequestRequest(handle=handle, owner=owner)
            for _ in range(_ATTEMPTS):
                await engine.reached.wait()
                if await _answered(engine, request, owed.get(key, ())):
                    break
                await asyncio.sleep(_PAUSE)
            # It stayed in the list while it was sent, so `add` may have dropped it as the oldest.
            owed.pop(key, None)
        # The list was empty just now, and nothing was awaited since: no release is left behind.
        del self._owed[engine], self._tasks[engine]


async def _answered(engine: Engine, request: wire.ReleaseRequestRequest, metadata: Metadata) -> bool:
    """Send a release. An engine that has just come back may still lose the connection on which it was lost."""
    try:
        await engine.requests.ReleaseRequest(request, timeout=_SECONDS, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code() not in _UNANSWERED
    return True
