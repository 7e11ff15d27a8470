"""Session streams through a gateway process that ends."""

from __future__ import annotations

import signal

import grpc
from unit.gateway.conftest import until
from unit.gateway.gateway_process import listening
from unit.gateway.sessions.session_client import SessionClient


async def test_readers_of_a_killed_gateway_go_on_at_the_next_one(launch, engine):
    """The engine sees them leave when the connection breaks; nothing is missing and nothing told twice."""
    handle, log = engine.log(tokens=[1, 2])
    gateway = await (await launch(*listening(engine))).connect()
    async with SessionClient(f"127.0.0.1:{gateway.port}") as client:
        channel = await (await client.begin()).read(handle)
        await client.until(lambda: client.of[channel].tokens == [1, 2])
        gateway.signal(signal.SIGKILL)
        await gateway.ended()
        assert (await client.failure()).code is grpc.StatusCode.UNAVAILABLE
    await until(engine, lambda: not engine.side.open)
    again = await (await launch(*listening(engine, port=gateway.port))).connect()
    engine.produce(log, 3, end=True)
    async with SessionClient(f"127.0.0.1:{again.port}") as client:
        assert await (await client.begin()).whole(await client.read(handle, 2)) == [3]


async def test_sigterm_lets_sessions_read_to_the_end(launch, engine):
    handle, log = engine.log(tokens=[1])
    gateway = await (await launch(*listening(engine))).connect()
    async with SessionClient(f"127.0.0.1:{gateway.port}") as client:
        channel = await (await client.begin()).read(handle)
        await client.until(lambda: client.of[channel].tokens)
        gateway.signal(signal.SIGTERM)
        assert (await gateway.event("draining"))["streams"] == 1
        engine.produce(log, 2, end=True)
        assert (await client.failure()).reported == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert client.of[channel].tokens == [1, 2]
        assert client.of[channel].whole
    assert await gateway.ended() == 0
