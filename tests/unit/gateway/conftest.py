"""A real gateway in front of scripted engines, all in the test's own event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import headrace_gateway
import pytest
from grpc_health.v1 import health_pb2_grpc
from headrace_gateway.options import EngineAddress, GatewayOptions
from headrace_gateway.server import Gateway
from headrace_gateway.sessions.limits import SessionLimits
from headrace_proto.pure.addresses import Address
from headrace_proto.v1 import engine_service_pb2_grpc, model_service_pb2_grpc, request_service_pb2_grpc
from support.clocks.waiting import LIMIT, ends
from support.scripted.engine_answers import RUNNING
from support.scripted.engine_server import ScriptedEngine
from unit.gateway.gateway_process import Process
from unit.gateway.sessions.session_client import SessionClient

QUICK = SessionLimits(reopen_seconds=0.01, reopen_at_most=0.02)
"""For gateways whose sessions with engines break."""


class Front:
    """A gateway, and a client's stubs to it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.channel = grpc.aio.insecure_channel(
            str(gateway.address),
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)],
        )
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.requests = request_service_pb2_grpc.RequestServiceStub(self.channel)
        self.facts = engine_service_pb2_grpc.EngineServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until a poll has made something hold."""
        async with ends("no poll makes it hold"):
            while not holds():
                await self.gateway.pool.changed().wait()

    async def seen(self, name: str, *, reachable: bool = True) -> None:
        await self.until(lambda: self.gateway.pool.named(name).view.reachable is reachable)


class World:
    """Starts engines and gateways, and ends them with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._engines: list[ScriptedEngine] = []

    async def engine(self, **models: Any) -> ScriptedEngine:
        engine = ScriptedEngine(**models)
        await engine.start()
        self._stack.push_async_callback(engine.stop)
        self._engines.append(engine)
        return engine

    def check(self) -> None:
        """No engine saw its peer break the rules of sessions."""
        assert [problem for engine in self._engines for problem in engine.broken] == []

    async def gateway(
        self,
        poll_interval: float = 3600.0,
        poll_timeout: float = LIMIT,
        settled: bool = True,
        limits: SessionLimits | None = None,
        keys_file: Path | None = None,
        http: bool = False,
        spares: tuple[str, ...] = (),
        **engines: Any,
    ) -> Front:
        """Engines by name: scripted ones, or addresses. By default it polls once, however slow the answer, and again
        only for a cause.
        """
        addresses = tuple(
            EngineAddress.parse(f"{name}={engine if isinstance(engine, str) else engine.address}")
            for name, engine in engines.items()
        )
        options = GatewayOptions(
            Address("127.0.0.1", 0),
            addresses,
            poll_interval=poll_interval,
            poll_timeout=poll_timeout,
            drain_limit=30.0,
            keys_file=keys_file,
            spares=spares,
            http=Address("127.0.0.1", 0) if http else None,
        )
        gateway = Gateway(options, limits)
        await gateway.start()
        self._stack.push_async_callback(gateway.close)
        front = self.connection(gateway)
        if settled:
            await gateway.pool.settle()
        return front

    def connection(self, gateway: Gateway) -> Front:
        """A connection of its own to a gateway."""
        front = Front(gateway)
        self._stack.push_async_callback(front.channel.close)
        return front


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(stack)
        yield world
        world.check()


@pytest.fixture
async def engine(world: World) -> ScriptedEngine:
    """One that runs the model smol."""
    return await world.engine(smol=RUNNING)


@pytest.fixture
async def first(world: World) -> ScriptedEngine:
    """One of two that run it."""
    return await world.engine(smol=RUNNING)


@pytest.fixture
async def second(world: World) -> ScriptedEngine:
    """The other."""
    return await world.engine(smol=RUNNING)


@pytest.fixture
async def front(world: World, engine: ScriptedEngine) -> Front:
    """A gateway that calls the engine e1."""
    return await world.gateway(e1=engine)


@pytest.fixture
async def join():
    """Opens sessions, and ends them with the test."""
    async with AsyncExitStack() as stack:

        async def begin(front, opened=True):
            client = await stack.enter_async_context(SessionClient(str(front.gateway.address)))
            return await client.begin() if opened else client

        yield begin


@pytest.fixture
async def launch():
    """Starts gateway processes, and ends them with the test."""
    started = []

    async def start(*arguments):
        environment = dict(os.environ, PYTHONPATH=str(Path(headrace_gateway.__file__).parents[1]))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace_gateway", *arguments, stderr=asyncio.subprocess.PIPE, env=environment
        )
        started.append(Process(process))
        return started[-1]

    yield start
    for process in started:
        await process.close()


async def until(engine: ScriptedEngine, holds: Callable[[], bool]) -> None:
    """Waits until something that the engine notes holds."""
    async with ends("the engine notes nothing that makes it hold"):
        while not holds():
            await engine.changed.wait()


async def ended(task: asyncio.Task[Any]) -> Any:
    """The exception of a task that fails."""
    async with ends("the task goes on"):
        await asyncio.wait([task])
    return task.exception()
