"""One engine behind the gateway: its channel, and what is known of it from asking it again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import grpc
import structlog
from headrace_proto.pure.limits import MAX_ANSWER_BYTES
from headrace_proto.pure.tls import any_certificate
from headrace_proto.server.listening import Address
from headrace_proto.server.options import CONNECTION_OPTIONS
from headrace_proto.v1 import (
    engine_service_pb2,
    engine_service_pb2_grpc,
    model_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
    request_service_pb2_grpc,
)

from headrace_gateway import API_VERSION, status
from headrace_gateway.forwarding.load import EngineLoad
from headrace_gateway.forwarding.rewrite import readdress
from headrace_gateway.options import EngineAddress

log = structlog.get_logger()

_CHANNEL_OPTIONS = [
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # they lose calls that begin just as a connection breaks: those never end
]

_ON_THE_WAY = frozenset(
    {model_pb2.MODEL_STATE_INSTALLING, model_pb2.MODEL_STATE_INITIAL, model_pb2.MODEL_STATE_STARTING}
)


@dataclass(frozen=True)
class EngineView:
    """What the last poll of an engine found.

    Attributes:
        reachable: it answered. Otherwise the rest is what it said when it last did.
        problem: why it is not reachable, for the log.
        info: who it is; None before it was first reached.
        models: its models by name.
    """

    reachable: bool = False
    problem: str = "not asked yet"
    info: engine_service_pb2.GetServerInfoResponse | None = None
    models: Mapping[str, model_pb2.ModelInfo] = field(default_factory=dict)

    @property
    def instance_id(self) -> str:
        """Random name of its present start; "" before it was first reached."""
        return self.info.instance_id if self.info is not None else ""

    @property
    def draining(self) -> bool:
        """It takes no new requests and will go away."""
        return self.info is not None and self.info.draining

    def state(self, model_name: str) -> model_pb2.ModelState:
        """State of a model there; UNSPECIFIED if it has none of that name."""
        info = self.models.get(model_name)
        return model_pb2.MODEL_STATE_UNSPECIFIED if info is None else info.state

    def runs(self, model_name: str) -> bool:
        """The model is RUNNING, as far as known."""
        return self.state(model_name) == model_pb2.MODEL_STATE_RUNNING

    def serves(self, model_name: str) -> bool:
        """The model takes requests now, as far as known: it is RUNNING, and its core is not being replaced."""
        info = self.models.get(model_name)
        return info is not None and serving(info)

    def coming(self, model_name: str) -> bool:
        """The model is on its way to RUNNING there, as far as known."""
        info = self.models.get(model_name)
        wanted = info is not None and info.wanted_state == model_pb2.MODEL_STATE_RUNNING
        return wanted and self.state(model_name) in _ON_THE_WAY

    def may_have(self, model_name: str) -> bool:
        """The model is there, or was when it last answered, or nobody can tell."""
        return self.reachable or self.info is None or model_name in self.models

    def takes(self, model_name: str) -> bool:
        """A request to the model can be placed there now."""
        return self.reachable and not self.draining and self.runs(model_name)


class Engine:
    """One engine of the list: its stubs, its last view and its load.

    Args:
        address: its name and where it listens.
        poll_timeout: seconds after which a poll, or a connection attempt, has failed.
        on_change: called after every poll.

    Attributes:
        view: what the last poll found.
        load: the requests on it.
        turn: when it was last chosen; lower is longer ago.
        wake: set to have it polled at once.
        reached: set while it is reachable.
    """

    def __init__(self, address: EngineAddress, poll_timeout: float, on_change: Callable[[], None]) -> None:
        self.name = address.name
        self.address = address.address
        self.channel = grpc.aio.insecure_channel(str(address.address), options=_CHANNEL_OPTIONS)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.requests = request_service_pb2_grpc.RequestServiceStub(self.channel)
        self.facts = engine_service_pb2_grpc.EngineServiceStub(self.channel)
        self.view = EngineView()
        self.load = EngineLoad()
        self.turn = 0
        self.wake = asyncio.Event()
        self.reached = asyncio.Event()
        self._timeout = poll_timeout
        self._on_change = on_change
        self._polling = asyncio.Lock()
        self._begun = self._completed = 0

    @property
    def asked(self) -> bool:
        """It has been polled at least once."""
        return self._completed > 0

    async def refresh(self) -> None:
        """Polls the engine. Concurrent callers share a poll that began after they asked."""
        wanted = self._begun + 1
        async with self._polling:
            if self._completed < wanted:
                self._begun += 1
                await self._poll()
                self._completed = self._begun

    async def reach(self) -> None:
        """Makes sure that a call can get through.

        Raises:
            CallError: ENGINE_UNREACHABLE; nothing was sent.
        """
        if not self.view.reachable:
            await self.refresh()
        if self.view.reachable and not await self._connected():
            self.suspect("no connection")
        if not self.view.reachable:
            raise status.engine_unreachable(self.name, reached=False)

    def suspect(self, problem: str) -> None:
        """A call found the engine gone: nothing is placed there until a poll, which comes at once, reaches it."""
        self._see(replace(self.view, reachable=False, problem=problem))
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
            view = await self._look()
        except grpc.aio.AioRpcError as error:
            view = replace(self.view, reachable=False, problem=await self._problem(error))
        self.load.counted(begun)
        self._see(view)

    async def _problem(self, error: grpc.aio.AioRpcError) -> str:
        """Why a poll failed, for the log."""
        problem = f"{error.code().name}: {error.details()}"
        closed = "Socket closed" in problem  # Which is all that one hears of a server that expects TLS.
        if closed and await _speaks_tls(self.address, self._timeout):
            problem += "; it speaks TLS, and this gateway reaches engines without"
        return problem

    async def _look(self) -> EngineView:
        info = await self.facts.GetServerInfo(engine_service_pb2.GetServerInfoRequest(), timeout=self._timeout)
        if problem := _misfit(info):
            return EngineView(problem=problem)
        view = replace(self.view, reachable=True, problem="", info=info)
        with suppress(grpc.aio.AioRpcError):  # it answers, so what it holds can be asked for
            models = await self.models.ListModels(model_service_pb2.ListModelsRequest(), timeout=self._timeout)
            view = replace(view, models={model.model_name: readdress(model, self.name) for model in models.models})
            if not self.load.followed:
                stat = await self.facts.GetEngineStat(engine_service_pb2.GetEngineStatRequest(), timeout=self._timeout)
                self.load.polled(sum(model.running + model.waiting for model in stat.stats))
        return view

    def _see(self, view: EngineView) -> None:
        old, self.view = self.view, view
        if view.reachable and (not old.reachable or old.instance_id != view.instance_id):
            log.info("engine_reached", engine=self.name, address=str(self.address), instance_id=view.instance_id)
        elif not view.reachable and (old.reachable or old.problem != view.problem):
            log.warning("engine_unreachable", engine=self.name, address=str(self.address), problem=view.problem)
        (self.reached.set if view.reachable else self.reached.clear)()
        self._on_change()


def serving(model: model_pb2.ModelInfo) -> bool:
    """The model takes requests: it is RUNNING, and has no progress, which would be that of a core replacing another."""
    return model.state == model_pb2.MODEL_STATE_RUNNING and not model.HasField("progress")


async def _speaks_tls(address: Address, seconds: float) -> bool:
    """Whether a server answers a greeting of TLS, which this gateway's channels do not send."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=any_certificate())
            writer.close()
            return True
    return False


def _misfit(info: engine_service_pb2.GetServerInfoResponse) -> str:
    """Why a server that answers cannot be one of the gateway's engines; "" if it can."""
    if info.role == engine_service_pb2.SERVER_ROLE_GATEWAY:
        return "a gateway listens there, not an engine"
    if info.api_version.partition(".")[0] != API_VERSION.partition(".")[0]:
        return f"it speaks contract version {info.api_version}, this gateway {API_VERSION}"
    return ""
