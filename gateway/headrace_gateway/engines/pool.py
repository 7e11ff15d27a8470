"""The gateway's list of engines, each polled at an interval."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress

import structlog
from headrace_proto.pure.faults import is_fault

from headrace_gateway import status
from headrace_gateway.engine_security import EngineSecurity
from headrace_gateway.engines.engine import Engine
from headrace_gateway.faults import defect
from headrace_gateway.membership import Membership
from headrace_gateway.options import EngineAddress

log = structlog.get_logger()

LEAVING_SECONDS = 3600.0
"""Seconds for which an engine that has left the list is asked for what it holds, as long as it answers."""

OnJoin = Callable[[Engine], None]
OnLeave = Callable[[Engine], Awaitable[None]]


class EnginePool:
    """The engines of the gateway's list, and those that have left it while they still answer.

    An engine that leaves the list gets nothing new, but is polled and asked for what it holds until it is lost, or for
    LEAVING_SECONDS. The order is that of the list.

    Args:
        membership: source of the list.
        interval: seconds between polls of an engine.
        timeout: seconds after which a poll has failed.
        security: how to connect to engines.
        spares: names of engines that get a request only where no other takes it.

    Attributes:
        engines: the engines of the list.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        interval: float,
        timeout: float,
        security: EngineSecurity | None = None,
        spares: Collection[str] = (),
    ) -> None:
        self.engines: tuple[Engine, ...] = ()
        self._membership = membership
        self._by_name: dict[str, Engine] = {}
        self._interval = interval
        self._timeout = timeout
        self._security = security
        self._spares = spares
        self._changed = asyncio.Event()
        self._known = asyncio.Event()
        self._dropped: set[Engine] = set()
        self._polls: dict[Engine, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_join: OnJoin = _nothing
        self._on_leave: OnLeave = _nothing_more

    async def start(self, on_join: OnJoin | None = None, on_leave: OnLeave | None = None) -> None:
        """Start to follow the list, and to poll. Wait for the list, but not for long.

        Args:
            on_join: called with each engine that joins.
            on_leave: awaited with each engine that is gone, before its gRPC channel is closed.
        """
        self._on_join, self._on_leave = on_join or _nothing, on_leave or _nothing_more
        self._spawn(self._membership.follow(self._apply))
        await self._listed()

    async def close(self) -> None:
        """Stop polling and close all gRPC channels."""
        tasks = [*self._tasks, *self._polls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in {*self._by_name.values(), *self._dropped}:
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

    def polls(self, engine: Engine) -> bool:
        """True if an engine is polled: it is in the list, or has left it and can be reached."""
        return engine in self._polls

    async def refresh(self) -> None:
        """Poll all engines now."""
        await asyncio.gather(*(engine.refresh() for engine in self.engines))

    async def settle(self) -> None:
        """Wait until every engine was polled once: a gateway that just started knows nothing before."""
        await self._listed()
        await asyncio.gather(*(engine.refresh() for engine in self.engines if not engine.polled))

    def changed(self) -> asyncio.Event:
        """Return an event that the next poll of any engine sets. Take it before reading the state."""
        return self._changed

    def notify(self) -> None:
        """Set the event of `changed`: something that is waited for may hold now."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _listed(self) -> None:
        """Wait until there is a list, but not for long: its source may be out of reach."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._known.wait()

    def _apply(self, addresses: Sequence[EngineAddress]) -> None:
        """Take over a list: the engines that are new to it join, the others leave."""
        before = self.engines
        self.engines = tuple(self._member(address) for address in addresses)
        for engine in set(before) - set(self.engines):
            if self._by_name.get(engine.name) is engine:
                log.info("engine_leaves", engine=engine.name, address=str(engine.address))
                engine.left = asyncio.get_running_loop().time()
        self._known.set()
        self.notify()

    def _member(self, address: EngineAddress) -> Engine:
        known = self._by_name.get(address.name)
        if known is not None and known.address == address.address:
            known.left = None
            return known
        if known is not None:
            self._spawn(self._drop(known))
        spare = address.name in self._spares
        engine = Engine(address, self._timeout, self.notify, self._security, spare=spare)
        self._by_name[engine.name] = engine
        self._polls[engine] = asyncio.create_task(self._follow(engine))
        self._on_join(engine)
        log.info("engine_joins", engine=engine.name, address=str(engine.address))
        return engine

    async def _drop(self, engine: Engine) -> None:
        """Forget an engine that has left."""
        self._dropped.add(engine)
        log.info("engine_gone", engine=engine.name, address=str(engine.address))
        if self._by_name.get(engine.name) is engine:
            del self._by_name[engine.name]
        if (poll := self._polls.pop(engine, None)) is not None:
            poll.cancel()
        self.notify()
        await self._on_leave(engine)
        await engine.channel.close()
        self._dropped.discard(engine)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, engine: Engine) -> None:
        while True:
            engine.wake.clear()
            try:
                await engine.refresh()
            except BaseException as error:  # Otherwise the engine would silently no longer be polled.
                if not is_fault(error):
                    raise
                defect("refresh", error)
            if engine.left is not None and (
                engine.lost or asyncio.get_running_loop().time() - engine.left > LEAVING_SECONDS
            ):
                self._spawn(self._drop(engine))
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await engine.wake.wait()


def _nothing(engine: Engine) -> None:
    pass


async def _nothing_more(engine: Engine) -> None:
    pass
