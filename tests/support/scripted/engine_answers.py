"""Default answers of a scripted engine: its known models and requests."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as PackedAny
from headrace_proto.v1 import engine_service_pb2 as facts_wire
from headrace_proto.v1 import model_pb2, request_pb2, stat_pb2, status_pb2
from headrace_proto.v1 import model_service_pb2 as model_wire
from headrace_proto.v1 import request_service_pb2 as wire

RUNNING = model_pb2.MODEL_STATE_RUNNING
INITIAL = model_pb2.MODEL_STATE_INITIAL
STARTING = model_pb2.MODEL_STATE_STARTING
STOPPED = model_pb2.MODEL_STATE_STOPPED
RELEASED = model_pb2.MODEL_STATE_RELEASED
FINISHED = request_pb2.GENERATE_STATUS_FINISHED
GENERATING = request_pb2.GENERATE_STATUS_GENERATING


@dataclass
class Held:
    """One request that the engine holds."""

    handle: str
    request_id: str
    model_name: str
    owner: str = ""
    handover: int = 0
    arrival_ms: int = 0
    tokens: list[int] = field(default_factory=lambda: [11, 12, 13])
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def accepted(self) -> request_pb2.AcceptedRequest:
        return request_pb2.AcceptedRequest(
            handle=self.handle, request_id=self.request_id, model_name=self.model_name, handover=self.handover
        )

    def state(self) -> request_pb2.RequestState:
        state = request_pb2.RequestState(request=self.accepted())
        sequence = state.sequences.add(status=FINISHED if self.ended.is_set() else GENERATING)
        sequence.stat.arrival_time.FromMilliseconds(self.arrival_ms)
        return state


def packed(name: str, message: Any, package: str = "google.rpc") -> Any:
    return PackedAny(type_url=f"type.googleapis.com/{package}.{name}", value=message.SerializeToString())


async def refuse(
    context: Any, code: grpc.StatusCode, reason: str, *details: Any, message: str = "", **facts: str
) -> NoReturn:
    """Abort a call as an engine does."""
    info = status_pb2.ErrorInfo(reason=reason, domain="headrace", metadata=facts)
    status = status_pb2.Status(
        code=code.value[0], message=message or reason, details=[packed("ErrorInfo", info), *details]
    )
    await context.abort(code, status.message, (("grpc-status-details-bin", status.SerializeToString()),))
    raise AssertionError("abort raises")


async def unknown_model(context: Any, name: str) -> NoReturn:
    await refuse(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL", model_name=name)


def _element(held: Held, index: int, position: int) -> wire.GeneratedElementsResponse:
    elements = request_pb2.GeneratedElements(position=position, token_ids=[held.tokens[position]])
    return wire.GeneratedElementsResponse(handle=held.handle, index=index, status=GENERATING, elements=elements)


def element(handle: str, position: int, token: int) -> wire.GeneratedElementsResponse:
    """Return one token of a stream, for scripts."""
    return _element(Held(handle, "", "", tokens=[0] * position + [token]), 0, position)


class Known:
    """The models and requests of an engine named "self", whatever its name in the gateway's list."""

    def __init__(self, **models: Any) -> None:
        self.models: dict[str, Any] = dict(models)
        self.requests: dict[str, Held] = {}
        self.released: dict[tuple[str, int], Held] = {}
        self.instance_id = secrets.token_hex(4)
        self.restarting: set[str] = set()
        self.wanted: dict[str, Any] = {}
        self.processors: tuple[str, ...] = ()
        self.running = self.waiting = 0
        self.draining = False
        self.api_version = "1.0"
        self.role = facts_wire.SERVER_ROLE_ENGINE
        self.features = ["generate", "session"]
        self.prompt_keys = b""
        self.changed = asyncio.Event()
        self._arrivals = 0

    def hold(self, request_id: str, model_name: str = "smol", **more: Any) -> Held:
        """Add a request as if it had been started."""
        self._arrivals += 1
        handle = f"self/{self.instance_id}/{secrets.token_hex(16)}"
        held = Held(handle, request_id, model_name, **{"arrival_ms": self._arrivals, **more})
        self.requests[held.handle.rpartition("/")[2]] = held
        return held

    def note(self) -> None:
        """Notify waiting tests that something happened."""
        self.changed.set()
        self.changed = asyncio.Event()


class FactAnswers(Known):
    """EngineService."""

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        return facts_wire.GetServerInfoResponse(
            role=self.role,
            name="self",
            instance_id=self.instance_id,
            api_version=self.api_version,
            build="scripted",
            features=self.features,
            draining=self.draining,
        )

    async def GetEngineStat(self, request: Any, context: Any) -> Any:
        if request.model_name and request.model_name not in self.models:
            await unknown_model(context, request.model_name)
        names = [request.model_name] if request.model_name else list(self.models)
        stats = [
            stat_pb2.EngineStat(
                model_name=name, state=self.models[name], engine="self", running=self.running, waiting=self.waiting
            )
            for name in names
        ]
        return facts_wire.GetEngineStatResponse(stats=stats)

    async def Tokenize(self, request: Any, context: Any) -> Any:
        if request.model_name not in self.models:
            await unknown_model(context, request.model_name)
        return facts_wire.TokenizeResponse(token_ids=[1, 2], rendered_text=request.text)

    async def Detokenize(self, request: Any, context: Any) -> Any:
        if request.model_name not in self.models:
            await unknown_model(context, request.model_name)
        return facts_wire.DetokenizeResponse(text="x" * len(request.token_ids))


class ModelAnswers(Known):
    """ModelService."""

    def _info(self, name: str) -> model_pb2.ModelInfo:
        info = model_pb2.ModelInfo(model_name=name, engine="self", state=self.models[name])
        info.wanted_state = self.wanted.get(name, info.state)
        if name in self.restarting:
            info.progress.phase = model_pb2.MODEL_PHASE_LOADING
        if info.state == RUNNING:
            info.logits_processors.extend(self.processors)
        return info

    async def ListModels(self, request: Any, context: Any) -> Any:
        return model_wire.ListModelsResponse(models=[self._info(name) for name in sorted(self.models)])

    async def GetModel(self, request: Any, context: Any) -> Any:
        if request.model_name not in self.models:
            await unknown_model(context, request.model_name)
        return model_wire.GetModelResponse(engines=[self._info(request.model_name)])

    async def InstallModel(self, request: Any, context: Any) -> Any:
        self.models.setdefault(request.config.model_name, INITIAL)
        return model_wire.InstallModelResponse(engines=[self._info(request.config.model_name)])

    async def StartModel(self, request: Any, context: Any) -> Any:
        return model_wire.StartModelResponse(engines=[await self._become(request, context, RUNNING)])

    async def StopModel(self, request: Any, context: Any) -> Any:
        return model_wire.StopModelResponse(engines=[await self._become(request, context, STOPPED)])

    async def ReleaseModel(self, request: Any, context: Any) -> Any:
        info = await self._become(request, context, RELEASED)
        del self.models[request.model_name]
        return model_wire.ReleaseModelResponse(engines=[info])

    async def _become(self, request: Any, context: Any, state: Any) -> model_pb2.ModelInfo:
        if request.model_name not in self.models:
            await unknown_model(context, request.model_name)
        self.models[request.model_name] = state
        self.note()
        return self._info(request.model_name)

    async def InspectModel(self, request: Any, context: Any) -> Any:
        description = model_pb2.ModelDescription(architecture=f"found at {request.model_path}")
        return model_wire.InspectModelResponse(description=description, engine="self")

    async def WatchModel(self, request: Any, context: Any) -> None:
        name = request.model_name
        if name and name not in self.models:
            await unknown_model(context, name)
        told: dict[str, Any] = {}
        while not name or name in self.models:
            changed = self.changed
            for each in [name] if name else sorted(self.models):
                info = self._info(each)
                if info != told.get(each):
                    told[each] = info
                    await context.write(model_wire.WatchModelResponse(model=info))
            await changed.wait()
        released = model_pb2.ModelInfo(model_name=name, engine="self", state=RELEASED)
        await context.write(model_wire.WatchModelResponse(model=released))


class RequestAnswers(Known):
    """RequestService."""

    async def StartRequest(self, request: Any, context: Any) -> Any:
        await self._check_takes(request.model_name, context)
        if request.validate_only:
            return wire.StartRequestResponse()
        for held in (*self.requests.values(), *self.released.values()):
            if request.request_id and held.request_id == request.request_id and held.handover == request.handover:
                return wire.StartRequestResponse(request=held.accepted())
        held = self.hold(
            request.request_id or secrets.token_hex(8),
            request.model_name,
            owner=request.owner,
            handover=request.handover,
        )
        return wire.StartRequestResponse(request=held.accepted(), prompt_keys=self.prompt_keys)

    async def _check_takes(self, name: str, context: Any) -> None:
        if self.draining:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "DRAINING")
        if name not in self.models:
            await unknown_model(context, name)
        if self.models[name] != RUNNING:
            detail = packed("ModelStateInfo", model_pb2.ModelStateInfo(state=self.models[name]), "headrace.v1")
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "MODEL_NOT_RUNNING", detail, model_name=name)
        if name in self.restarting:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "CORE_RESTARTING", model_name=name)

    async def _find(self, handle: str, owner: str, context: Any) -> Held:
        _, instance, id_ = handle.split("/")
        if instance != self.instance_id:
            await refuse(context, grpc.StatusCode.NOT_FOUND, "ENGINE_LOST", handle=handle)
        held = self.requests.get(id_)
        if held is None or held.owner != owner:
            # The handle as this engine would write it, so that the gateway has something to rewrite.
            await refuse(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST", handle=f"self/{instance}/{id_}")
        return held

    async def StopRequest(self, request: Any, context: Any) -> Any:
        held = await self._find(request.handle, request.owner, context)
        held.ended.set()
        return wire.StopRequestResponse(sequences=held.state().sequences)

    async def ReleaseRequest(self, request: Any, context: Any) -> Any:
        held = self.requests.pop(request.handle.rpartition("/")[2], None)
        if held is not None:
            self.released[held.request_id, held.handover] = held
        return wire.ReleaseRequestResponse()

    async def SyncRequest(self, request: Any, context: Any) -> Any:
        if request.WhichOneof("target") == "handle":
            waited = [await self._find(request.handle, request.owner, context)]
        else:
            if request.model_name not in self.models:
                await unknown_model(context, request.model_name)
            waited = [held for held in self.requests.values() if held.model_name == request.model_name]
        for held in waited:
            await held.ended.wait()
        return wire.SyncRequestResponse(requests=[held.state() for held in waited])

    async def GetRequest(self, request: Any, context: Any) -> Any:
        if request.WhichOneof("key") == "handle":
            held = await self._find(request.handle, request.owner, context)
        else:
            known = [
                held
                for held in self.requests.values()
                if held.request_id == request.request_id and held.owner == request.owner
            ]
            if not known:
                await refuse(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST", **self._remembered(request))
            held = max(known, key=lambda each: each.handover)
        return wire.GetRequestResponse(request=held.state())

    def _remembered(self, request: Any) -> dict[str, str]:
        """Return an engine's answer for a request_id whose request was released."""
        released = [held for (request_id, _), held in self.released.items() if request_id == request.request_id]
        if not released:
            return {}
        held = max(released, key=lambda each: each.handover)
        return {"handle": held.handle, "handover": str(held.handover)}

    async def ListRequests(self, request: Any, context: Any) -> Any:
        """List a page; its token is the arrival of the last request before the page."""
        below = int(request.page_token or 2**62)
        mine = [held for held in self.requests.values() if held.owner == request.owner and held.arrival_ms < below]
        mine = [held for held in mine if request.model_name in ("", held.model_name)]
        mine.sort(key=lambda held: -held.arrival_ms)
        size = request.page_size or 100
        page = mine[:size]
        token = str(page[-1].arrival_ms) if len(mine) > size else ""
        return wire.ListRequestsResponse(requests=[held.state() for held in page], next_page_token=token)

    async def GeneratedElements(self, request: Any, context: Any) -> None:
        held = await self._find(request.handle, request.owner, context)
        for position in range(request.from_position, len(held.tokens)):
            await context.write(_element(held, request.index, position))
        end = request_pb2.EndRecord(status=FINISHED, position=len(held.tokens))
        await context.write(wire.GeneratedElementsResponse(handle=held.handle, status=FINISHED, end=end))

    async def Generate(self, request: Any, context: Any) -> None:
        await self._check_takes(request.model_name, context)
        held = self.hold(secrets.token_hex(8), request.model_name)
        await context.write(wire.GenerateResponse(request=held.accepted()))
        elements = request_pb2.GeneratedElements(token_ids=held.tokens, text=request.text)
        await context.write(wire.GenerateResponse(elements=elements))
        end = request_pb2.EndRecord(status=FINISHED, position=len(held.tokens))
        await context.write(wire.GenerateResponse(status=FINISHED, end=end))
