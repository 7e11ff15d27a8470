"""One engine behind the gateway: its gRPC channel, and its state as last polled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import grpc
from headrace_proto.pure.addresses import Address
from headrace_proto.pure.limits import MAX_ANSWER_BYTES
from headrace_proto.pure.tls import any_certificate
from headrace_proto.server.logs import logger
from headrace_proto.server.options import CONNECTION_OPTIONS
from headrace_proto.v1 import (
    engine_service_pb2,
    engine_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
    request_service_pb2_grpc,
)

from headrace_gateway import API_VERSION, status
from headrace_gateway.engine_security import EngineSecurity
from headrace_gateway.engines.breaker import Breaker
from headrace_gateway.engines.cached_blocks import CachedBlocks
from headrace_gateway.engines.lacked_adapters import LackedAdapters
from headrace_gateway.engines.liveness import LOST_SECONDS, Liveness
from headrace_gateway.engines.load import EngineLoad
from headrace_gateway.engines.prefixes import Prefixes
from headrace_gateway.engines.rewrite import readdress
from headrace_gateway.engines.view import EngineView
from headrace_gateway.options import EngineAddress

log = logger(__name__)

_CHANNEL_OPTIONS = [
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # retries lose calls that start as a connection breaks: they never end
]


class Engine:
    """One engine of the list: its stubs, its last view and its load.

    Args:
        address: name and address.
        poll_timeout: seconds after which a poll, or a connection attempt, has failed.
        on_poll: called after every poll.
        security: how to connect.
        spare: it gets a request only where no other engine takes it.

    Attributes:
        view: what the last poll found.
        load: number of requests on it.
        turn: serial number of its last choice; the lowest was chosen longest ago.
        wake: set it to poll at once.
        reached: set while it is reachable.
        missing: set while it is lost.
        liveness: when it was last heard of.
        breaker: passes over it while it fails what it is given.
        prefixes: beginnings of prompts that were sent there.
        cached: the blocks in its prefix caches, where it reports them.
        lacked: adapters that it refused lately.
        left: time at which it left the gateway's list; None while it is in it.
    """

    def __init__(
        self,
        address: EngineAddress,
        poll_timeout: float,
        on_poll: Callable[[], None],
        security: EngineSecurity | None = None,
        *,
        spare: bool = False,
    ) -> None:
        self.name = address.name
        self.address = address.address
        self.spare = spare
        self._security = security or EngineSecurity()
        # The pool closes it, once the engine is dropped and its session has ended.
        self.channel = self._security.channel(str(address.address), _CHANNEL_OPTIONS)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.requests = request_service_pb2_grpc.RequestServiceStub(self.channel)
        self.facts = engine_service_pb2_grpc.EngineServiceStub(self.channel)
        self.view = EngineView()
        self.load = EngineLoad()
        self.turn = 0
        self.wake = asyncio.Event()
        self.reached = asyncio.Event()
        self.missing = asyncio.Event()
        self.breaker = Breaker()
        self.prefixes = Prefixes()
        self.cached = CachedBlocks()
        self.lacked = LackedAdapters()
        self.left: float | None = None
        self.liveness = Liveness()
        self._timeout = poll_timeout
        self._on_poll = on_poll
        self._polling = asyncio.Lock()
        self._begun = self._completed = 0

    @property
    def polled(self) -> bool:
        """True if it was polled at least once."""
        return self._completed > 0

    async def refresh(self) -> None:
        """Poll the engine. Concurrent callers share a poll that began after their call."""
        wanted = self._begun + 1
        async with self._polling:
            if self._completed < wanted:
                self._begun += 1
                await self._poll()
                self._completed = self._begun

    async def reach(self) -> None:
        """Connect, so that a call can get through.

        Raises:
            CallError: ENGINE_UNREACHABLE; nothing was sent.
        """
        if not self.view.reachable:
            await self.refresh()
        if self.view.reachable and not await self._connected():
            self.suspect("no connection")
        if not self.view.reachable:
            raise self.unreachable(reached=False)

    @property
    def lost(self) -> bool:
        """True if it counts as lost, and is not just slow: its port is closed, or nothing was heard of it for long.

        An engine that drains has closed its port, but still has a session stream.
        """
        if self.view.reachable:
            return False
        return (self.view.refused and not self.load.followed) or self.liveness.silence >= LOST_SECONDS

    def unreachable(self, *, reached: bool) -> status.CallError:
        """Return the failure of a call to it while it does not answer; `reached`: the call may have arrived."""
        return status.engine_unreachable(self.name, reached=reached, lost=self.lost)

    def suspect(self, problem: str) -> None:
        """Mark the engine unreachable after a failed call, and poll it at once; nothing is placed there until then."""
        self._update(replace(self.view, reachable=False, problem=problem))
        self.wake.set()

    async def _connected(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while (state := self.channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await self.channel.wait_for_state_change(state)
                return True
        return False

    async def _poll(self) -> None:
        begun = time.monotonic()
        try:
            view = await self._query()
        except grpc.aio.AioRpcError as error:
            view = replace(self.view, reachable=False, problem=await self._problem(error))
        else:
            self.liveness.heard()
        self.load.counted(begun)
        self._update(view)

    async def _problem(self, error: grpc.aio.AioRpcError) -> str:
        """Return why a poll failed, for the log."""
        problem = f"{error.code().name}: {error.details()}"
        closed = "Socket closed" in problem  # all that gRPC reports of a server that expects TLS
        if closed and not self._security.encrypted and await _speaks_tls(self.address, self._timeout):
            problem += "; it speaks TLS, but this gateway connects to engines without TLS (--engine-ca)"
        return problem

    async def _query(self) -> EngineView:
        info = await self.facts.GetServerInfo(engine_service_pb2.GetServerInfoRequest(), timeout=self._timeout)
        if problem := _incompatibility(info):
            return EngineView(problem=problem)
        view = replace(self.view, reachable=True, problem="", info=info)
        with suppress(grpc.aio.AioRpcError):  # it answered, so it is reachable even if these calls fail
            models = await self.models.ListModels(model_service_pb2.ListModelsRequest(), timeout=self._timeout)
            view = replace(view, models={model.model_name: readdress(model, self.name) for model in models.models})
            if not self.load.followed:
                stat = await self.facts.GetEngineStat(engine_service_pb2.GetEngineStatRequest(), timeout=self._timeout)
                self.load.polled(sum(model.running + model.waiting for model in stat.stats))
        return view

    def _update(self, view: EngineView) -> None:
        old, self.view = self.view, view
        if view.reachable and (not old.reachable or old.instance_id != view.instance_id):
            log.info("engine_reached", engine=self.name, address=str(self.address), instance_id=view.instance_id)
        elif not view.reachable and (old.reachable or old.problem != view.problem):
            log.warning("engine_unreachable", engine=self.name, address=str(self.address), problem=view.problem)
        (self.reached.set if view.reachable else self.reached.clear)()
        (self.missing.set if self.lost else self.missing.clear)()
        if not view.reachable:
            self.liveness.give_up()
        self._on_poll()


async def _speaks_tls(address: Address, seconds: float) -> bool:
    """True if a server answers a TLS handshake."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=any_certificate())
            writer.close()
            return True
    return False


def _incompatibility(info: engine_service_pb2.GetServerInfoResponse) -> str:
    """Return why a server cannot be one of the gateway's engines; "" if it can."""
    if info.role == engine_service_pb2.SERVER_ROLE_GATEWAY:
        return "a gateway listens there, not an engine"
    if info.api_version.partition(".")[0] != API_VERSION.partition(".")[0]:
        return f"it speaks contract version {info.api_version}, this gateway {API_VERSION}"
    return ""
