"""A session stream to a server, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace_engine.service.server import EngineServer
from headrace_proto.v1 import request_service_pb2_grpc
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse
from support.clocks.waiting import wait_until
from support.engine.rig import Rig
from support.models.tiny_models import make_tiny_llama
from support.scripted.core import ScriptedCore

OPEN = SessionRequest(options={"client": "test 1"})


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


class Stream:
    """One session, from its client's side."""

    def __init__(self, rig: Rig, core: ScriptedCore, channel: grpc.aio.Channel) -> None:
        self.rig, self.core = rig, core
        self.call = request_service_pb2_grpc.RequestServiceStub(channel).Session()

    async def say(self, message: SessionRequest | None = None, **fields: Any) -> None:
        await self.call.write(message or SessionRequest(**fields))

    async def hear(self) -> SessionResponse:
        found = await self.call.read()
        assert found is not grpc.aio.EOF
        return found

    async def hear_until(self, field: str) -> list[SessionResponse]:
        """Messages up to the first that has a field."""
        found = [await self.hear()]
        while not getattr(found[-1], field):
            found.append(await self.hear())
        return found

    async def start(self, **config: Any) -> tuple[str, int]:
        """Start a request; returns its handle, and the key that the core knows it by."""
        accepted = await self.rig.start(config={"max_new_tokens": 60, **config})
        return accepted.handle, self.rig.added().key

    async def open(self, **attach: Any) -> SessionResponse:
        """Open, attach channel 1, and hear what stands then."""
        await self.say(OPEN)
        opened = await self.hear()
        if attach:
            await self.say(attach=[{"channel": 1, **attach}])
            return await self.hear()
        return opened

    async def failure(self) -> grpc.aio.AioRpcError:
        """What the session ends with."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while True:
                await self.hear()
        return caught.value


@pytest.fixture
async def stream(model_path: Path) -> AsyncIterator[Stream]:
    rig = Rig(model_path)
    core = await rig.run()
    server = EngineServer(rig.engine, reflection=False)
    address = server.listen("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stream = Stream(rig, core, channel)
        yield stream
        stream.call.cancel()
    await server.stop(None)
    await gone(stream)  # The server does not wait for what it cancelled.
    await rig.engine.close()


async def gone(stream: Stream) -> None:
    """Until the engine noticed that the client is gone."""
    await asyncio.to_thread(wait_until, lambda: not len(stream.rig.engine.sessions), "the session is still open")
