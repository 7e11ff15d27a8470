"""Two engines behind gateways, over gRPC, with cores that nobody plays: keys and lists that concern both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace import AsyncClient
from headrace_engine.engine.requests.admission import Admission
from headrace_engine.service.server import EngineServer
from headrace_gateway.options import EngineAddress, GatewayOptions
from headrace_gateway.server import Gateway
from headrace_proto.pure.addresses import Address
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import LIMIT, happens
from support.engine.rig import NAME, Rig
from support.models.tiny_models import make_tiny_llama
from unit.gateway.conftest import Front
from unit.gateway.failures import failing


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


class Pair:
    """Two engines that run a model, and gateways in front of both."""

    def __init__(self, model_path: Path, stack: AsyncExitStack) -> None:
        self.rigs = [Rig(model_path), Rig(model_path)]
        self._stack = stack
        self._addresses: list[EngineAddress] = []

    async def start(self) -> None:
        for number, rig in enumerate(self.rigs, start=1):
            self._stack.push_async_callback(close, rig)
            rig.new_engine(logits_processors={"both": _process, f"of-e{number}": _process})
            await rig.run()
            server = EngineServer(rig.engine)
            self._addresses.append(EngineAddress.parse(f"e{number}={server.listen('127.0.0.1:0')}"))
            await server.start()
            self._stack.push_async_callback(server.stop, None)

    async def front(self) -> Front:
        """Another gateway."""
        options = GatewayOptions(
            Address("127.0.0.1", 0), tuple(self._addresses), poll_interval=3600.0, poll_timeout=LIMIT, drain_limit=30.0
        )
        gateway = Gateway(options)
        await gateway.start()
        self._stack.push_async_callback(gateway.close)
        front = Front(gateway)
        self._stack.push_async_callback(front.channel.close)
        await gateway.pool.settle()
        return front

    @property
    def held(self) -> int:
        """Requests that were started and not released."""
        return sum(len(rig.engine.list_requests("")[0]) for rig in self.rigs)


def _process(logits: Any, ids: Any, arguments: Any) -> None:
    """Cores that nobody plays call no processors."""


async def close(rig: Rig) -> None:
    for core in rig.launcher.cores:
        core.end_close()
    await rig.engine.close()


@pytest.fixture
async def pair(model_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        pair = Pair(model_path, stack)
        await pair.start()
        yield pair


def question(request_id: str, *ids: int, **fields: Any) -> wire.StartRequestRequest:
    request = wire.StartRequestRequest(model_name=NAME, request_id=request_id, **fields)
    request.token_ids.ids.extend(ids or (5, 6, 7))
    return request


async def started(front: Front, request_id: str, *ids: int, **fields: Any) -> Any:
    """What a start is answered."""
    return (await front.requests.StartRequest(question(request_id, *ids, **fields))).request


class Held:
    """Starts wait at their engines until the test lets them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()
        accept = Admission.accept

        async def held(admission: Admission, request: Any) -> Any:
            self.arrived.set()
            await self.go.wait()
            return await accept(admission, request)

        monkeypatch.setattr(Admission, "accept", held)


@pytest.mark.parametrize("first_gateway", ["answers", "is left"])
async def test_a_retry_through_another_gateway_joins_the_start(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, first_gateway: str
) -> None:
    held = Held(monkeypatch)
    one, two = await pair.front(), await pair.front()
    first = one.requests.StartRequest(question("r1"))
    await happens(held.arrived, "no start arrives")
    if first_gateway == "is left":
        first.cancel()
    retry = asyncio.ensure_future(started(two, "r1", attempt=1))
    held.go.set()
    again = await retry
    assert again.joined
    if first_gateway == "answers":
        assert (await first).request.handle == again.handle
    assert pair.held == 1


async def test_the_key_of_a_released_request_is_found_on_its_engine(pair: Pair) -> None:
    front = await pair.front()
    for number in range(2):  # one on each engine
        request_id = f"r{number}"
        accepted = await started(front, request_id)
        await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=accepted.handle))
        gone = await failing(front.requests.StartRequest(question(request_id, attempt=1)))
        assert gone.reported == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST")
        failure = await failing(front.requests.StartRequest(question(request_id, 8, 9, attempt=1)))
        assert failure.reported == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert pair.held == 0


async def test_a_client_with_an_id_finds_what_was_started_with_it(pair: Pair) -> None:
    one, two = await pair.front(), await pair.front()
    async with AsyncClient(str(one.gateway.address)) as client, AsyncClient(str(two.gateway.address)) as other:
        handles = {(await each.start_request(NAME, [5, 6], request_id="mine"))[0] for each in (client, client, other)}
        assert len(handles) == pair.held == 1


async def test_a_handover_released_between_two_pages_hides_nothing(pair: Pair) -> None:
    front = await pair.front()
    handles = set()
    for number in range(3):
        for rig in pair.rigs:
            rig.clock.advance(10)
        handles.add((await started(front, f"r{number}")).handle)
    resumed = question("r9", handover=1)
    arrived = resumed.resume.sequences.add().stat.arrival_time
    arrived.FromNanoseconds(round((pair.rigs[0].clock() - 15) * 1e9))
    handles.add((await front.requests.StartRequest(resumed)).request.handle)
    reported, token, places = [], "", []
    while token or not reported:
        page = await front.requests.ListRequests(wire.ListRequestsRequest(page_size=1, page_token=token))
        (state,), token = page.requests, page.next_page_token
        reported.append(state.request.handle)
        places.append(state.request.request_id)
        await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=reported[-1]))
    assert (set(reported), places) == (handles, ["r2", "r1", "r9", "r0"])


async def test_a_request_goes_where_its_logits_processors_are(pair: Pair) -> None:
    front = await pair.front()

    async def place(*names: str) -> str:
        asked = question("")
        for name in names:
            asked.config.logits_processors.add(name=name)
        return (await front.requests.StartRequest(asked)).request.handle.partition("/")[0]

    assert [await place("of-e2", "both") for _ in range(3)] == ["e2"] * 3
    assert {await place("both") for _ in range(8)} == {"e1", "e2"}
    with pytest.raises(grpc.aio.AioRpcError, match=r"no engine that runs model .* has all of them"):
        await place("of-e1", "of-e2")
    with pytest.raises(grpc.aio.AioRpcError, match=r'"gone" is not available on any .* allowed: both, of-e1, of-e2'):
        await place("gone")
