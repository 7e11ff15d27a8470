"""The asynchronous client, while a gateway is killed under its streams, and when its tasks are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from headrace import AsyncClient, AsyncResultQueue, RetryPolicy
from headrace.types import GeneratedElements
from support.clocks.waiting import LIMIT, ends, eventually, happens
from support.servers.gate import Gate
from support.servers.ports import free_port
from support.servers.processes import Server, gated_engine_server, gateway_server
from support.servers.reading import Answer, joined

STREAMS = 16
LENGTH = 120
PATIENT = RetryPolicy(give_up_after=120)
ENDLESS: dict[str, Any] = {"ignore_eos": True, "do_sample": False}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate") / "steps")


@pytest.fixture(scope="module")
def engine(tiny: Path, gate: Gate) -> Iterator[Server]:
    """An engine whose steps wait at the gate."""
    with gated_engine_server("e1", gate) as server:
        asyncio.run(_serve(server, tiny))
        yield server


async def _serve(server: Server, folder: Path) -> None:
    async with AsyncClient(server.address) as client:
        await client.install_model("tiny", path=str(folder), max_batch=STREAMS, max_length=512, num_threads=1)
        await client.start_model("tiny")


@pytest.fixture
async def direct(engine: Server, gate: Gate) -> AsyncIterator[AsyncClient]:
    """A client of the engine itself. Afterwards the gate is open, and nothing is left of any request."""
    async with AsyncClient(engine.address) as client:
        yield client
        gate.open()
        async with ends("a request is left"):
            while await client.list_requests():  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)


class AsyncReading:
    """A task that reads a queue to its end, as users do."""

    def __init__(self, queue: AsyncResultQueue) -> None:
        self._elements: list[GeneratedElements] = []
        self._queue = queue
        self.task = asyncio.create_task(self._read())

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return sum(len(element.ids_from_generate) for element in self._elements)

    async def _read(self) -> Answer:
        async for element in self._queue:
            self._elements.append(element)
        return joined(self._elements)


async def start_all(client: AsyncClient) -> list[AsyncReading]:
    """Readers of as many answers as there are streams."""
    starts = [client.start_request("tiny", ids=[1, 2, n], max_new_tokens=LENGTH, **ENDLESS) for n in range(STREAMS)]
    return [AsyncReading(queue) for _, queue in await asyncio.gather(*starts)]


async def whole(readings: list[AsyncReading]) -> list[Answer]:
    """All answers."""
    return list(await asyncio.wait_for(asyncio.gather(*[reading.task for reading in readings]), LIMIT))


def listening(running: ExitStack, engine: Server, port: int) -> None:
    """A gateway on that port, which is killed when the stack is closed."""
    gateway = running.enter_context(gateway_server({"e1": engine.address}, "--listen", f"127.0.0.1:{port}"))
    running.callback(gateway.process.wait)
    running.callback(gateway.process.kill)


@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_killed_gateway_costs_no_token(engine: Server, gate: Gate, direct: AsyncClient, gateways: int) -> None:
    """One comes back where it was, or there is another: readers go on from where each of them was."""
    ports = [free_port() for _ in range(gateways)]
    address = ",".join(f"127.0.0.1:{port}" for port in ports)
    expected = await whole(await start_all(direct))
    with ExitStack() as first, ExitStack() as second:
        await asyncio.to_thread(listening, first, engine, ports[0])
        if gateways == 2:
            await asyncio.to_thread(listening, second, engine, ports[1])
        async with AsyncClient(address, retry=PATIENT) as client:
            gate.shut()
            readings = await start_all(client)
            await asyncio.to_thread(gate.let, 40)
            await eventually(lambda: min(reading.length for reading in readings) >= 20, "some reader hears nothing")
            await asyncio.to_thread(first.close)
            await asyncio.to_thread(gate.let, 20)
            assert max(reading.length for reading in readings) < LENGTH
            if gateways == 1:
                await asyncio.to_thread(listening, first, engine, ports[0])
            gate.open()
            assert await whole(readings) == expected
    for request in await direct.list_requests():
        await direct.release_request(request.handle)


async def test_what_is_cancelled_leaves_nothing_at_the_engine(direct: AsyncClient, gate: Gate) -> None:
    """A start that waits for its answer, and an answer in the middle of its text."""

    async def read() -> None:
        async for _ in direct.generate("tiny", "Hello", **ENDLESS):
            reading.set()

    reading = asyncio.Event()
    task = asyncio.create_task(read())
    await happens(reading, "no text comes")
    start = asyncio.create_task(direct.start_request("tiny", "Hello", **ENDLESS))
    await asyncio.sleep(0)
    for one in (task, start):
        one.cancel()
    assert [type(end) for end in await asyncio.gather(task, start, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    async with ends("the engine has requests left"):
        while await direct.list_requests():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
