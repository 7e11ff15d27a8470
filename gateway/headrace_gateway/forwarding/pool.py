"""The gateway's list of engines, each polled at an interval."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from headrace_proto.pure.faults import is_fault

from headrace_gateway import status
from headrace_gateway.faults import defect
from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.options import EngineAddress


class EnginePool:
    """The list of engines, in the order of the command line.

    Args:
        addresses: name and address of each.
        interval: seconds between polls of an engine.
        timeout: seconds after which a poll has failed.
    """

    def __init__(self, addresses: Sequence[EngineAddress], *, interval: float, timeout: float) -> None:
        self.engines = tuple(Engine(address, timeout, self._notify) for address in addresses)
        self._by_name = {engine.name: engine for engine in self.engines}
        self._interval = interval
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to poll."""
        self._tasks = [asyncio.create_task(self._follow(engine)) for engine in self.engines]

    async def close(self) -> None:
        """Stop polling and close all gRPC channels."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self.engines:
            await engine.channel.close()

    def has(self, name: str) -> bool:
        """True if the list has an engine of that name."""
        return name in self._by_name

    def named(self, name: str) -> Engine:
        """Return the engine of that name.

        Raises:
            CallError: UNKNOWN_ENGINE.
        """
        if name not in self._by_name:
            raise status.unknown_engine(name, list(self._by_name))
        return self._by_name[name]

    def addressed(self, engine_ids: Sequence[str]) -> list[Engine]:
        """Return the engines named, in that order; all engines if none is named.

        Raises:
            CallError: UNKNOWN_ENGINE, or INVALID_FIELD for a name given twice.
        """
        if not engine_ids:
            return list(self.engines)
        for name, count in Counter(engine_ids).items():
            if count > 1:
                raise status.invalid_field("engine_ids", f'"{status.shorten(name)}" is given twice')
        return [self.named(name) for name in engine_ids]

    def reachable(self) -> list[Engine]:
        """Return the engines that answered the last poll."""
        return [engine for engine in self.engines if engine.view.reachable]

    async def refresh(self) -> None:
        """Poll all engines now."""
        await asyncio.gather(*(engine.refresh() for engine in self.engines))

    async def settle(self) -> None:
        """Wait until every engine was polled once: a gateway that just started knows nothing before."""
        await asyncio.gather(*(engine.refresh() for engine in self.engines if not engine.polled))

    def changed(self) -> asyncio.Event:
        """Return an event that the next poll of any engine sets. Take it before reading the state."""
        return self._changed

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _follow(self, engine: Engine) -> None:
        while True:
            engine.wake.clear()
            try:
                await engine.refresh()
            except BaseException as error:  # Otherwise the engine would silently no longer be polled.
                if not is_fault(error):
                    raise
                defect("refresh", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await engine.wake.wait()
