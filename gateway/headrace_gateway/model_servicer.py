"""ModelService of the gateway: each verb goes to several engines, and the answer has the outcome on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_proto.server.interceptor import Context
from headrace_proto.v1 import model_pb2, model_service_pb2_grpc
from headrace_proto.v1 import model_service_pb2 as wire

from headrace_gateway.access import callers
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.forwarding.fan_out import Outcome, answers, ask_each, knowing_model
from headrace_gateway.forwarding.forward import Forward
from headrace_gateway.forwarding.model_watch import ModelWatch
from headrace_gateway.forwarding.serialization import Serialization
from headrace_gateway.status import CallError


class ModelServicer(model_service_pb2_grpc.ModelServiceServicer):
    """Forwards verbs to all engines, or to those named in engine_ids.

    A call fails only if it failed on every engine addressed, with the first one's status. Without engine_ids, an engine
    that does not know the model is left out, unless no engine knows it.

    Args:
        pool: the engines.
        calls: knows whether the gateway is stopping.
    """

    def __init__(self, pool: EnginePool, calls: LiveCalls) -> None:
        self._pool = pool
        self._calls = calls

    async def InstallModel(self, request: wire.InstallModelRequest, context: Context) -> wire.InstallModelResponse:
        """Install a model on every engine addressed."""
        self._calls.refuse_if_draining()
        models = await self._verb("InstallModel", request, request.config.model_name, context)
        return wire.InstallModelResponse(engines=models)

    async def StartModel(self, request: wire.StartModelRequest, context: Context) -> wire.StartModelResponse:
        """Start a model wherever it is installed."""
        return wire.StartModelResponse(engines=await self._verb("StartModel", request, request.model_name, context))

    async def StopModel(self, request: wire.StopModelRequest, context: Context) -> wire.StopModelResponse:
        """Stop a model wherever it is installed."""
        return wire.StopModelResponse(engines=await self._verb("StopModel", request, request.model_name, context))

    async def ReleaseModel(self, request: wire.ReleaseModelRequest, context: Context) -> wire.ReleaseModelResponse:
        """Release a model wherever it is installed."""
        return wire.ReleaseModelResponse(engines=await self._verb("ReleaseModel", request, request.model_name, context))

    async def GetModel(self, request: wire.GetModelRequest, context: Context) -> wire.GetModelResponse:
        """Return state and effective config of a model on each engine that has it."""
        outcomes = await self._ask_addressed("GetModel", request, Forward(context))
        return wire.GetModelResponse(engines=_by_engine(outcomes, request.model_name))

    async def ListModels(self, request: wire.ListModelsRequest, context: Context) -> wire.ListModelsResponse:
        """List all models by name, then engine; an engine that does not answer is an entry without a name."""
        outcomes = await self._ask_addressed("ListModels", request, Forward(context))
        answers(outcomes)
        may_see = callers.current().may_see
        models = [model for one in outcomes for model in _models(one, "") if may_see(model.model_name)]
        models.sort(key=lambda model: (model.model_name, model.engine))
        return wire.ListModelsResponse(models=models)

    async def InspectModel(self, request: wire.InspectModelRequest, context: Context) -> Any:
        """Ask the engine named, or the first that answers."""
        forward, own = Forward(context), _own(request, "engine_id")
        candidates = [self._pool.named(request.engine_id)] if request.engine_id else self._pool.engines
        for engine in candidates[:-1]:
            try:
                return await forward.ask(engine, engine.models.InspectModel, own)
            except CallError as error:
                if error.reason != "ENGINE_UNREACHABLE":
                    raise
        return await forward.ask(candidates[-1], candidates[-1].models.InspectModel, own)

    async def SerializeModel(self, request: wire.SerializeModelRequest, context: Context) -> None:
        """Write a model on every engine addressed; merge their progress."""
        self._calls.refuse_if_draining()
        serialization = Serialization(Forward(context), _own(request, "engine_ids"), context)
        await serialization.run(self._pool.addressed(request.engine_ids))

    async def LoadAdapter(self, request: wire.LoadAdapterRequest, context: Context) -> wire.LoadAdapterResponse:
        """Load an adapter wherever its model is installed."""
        self._calls.refuse_if_draining()
        outcomes = await self._ask_addressed("LoadAdapter", request, Forward(context))
        return wire.LoadAdapterResponse(engines=_adapters(outcomes, request.model_name))

    async def UnloadAdapter(self, request: wire.UnloadAdapterRequest, context: Context) -> wire.UnloadAdapterResponse:
        """Unload an adapter wherever its model is installed."""
        outcomes = await self._ask_addressed("UnloadAdapter", request, Forward(context))
        return wire.UnloadAdapterResponse(engines=_adapters(outcomes, request.model_name))

    async def ListAdapters(self, request: wire.ListAdaptersRequest, context: Context) -> wire.ListAdaptersResponse:
        """List the adapters of a model by name, then engine; an engine that fails is an entry without a name."""
        outcomes = await self._ask_addressed("ListAdapters", request, Forward(context))
        adapters = _adapters(outcomes, request.model_name)
        adapters.sort(key=lambda adapter: (adapter.name, adapter.engine))
        return wire.ListAdaptersResponse(adapters=adapters)

    async def FreeSerializedModel(
        self, request: wire.FreeSerializedModelRequest, context: Context
    ) -> wire.FreeSerializedModelResponse:
        """Free a model in the memory of every engine addressed."""
        answers(await self._ask_addressed("FreeSerializedModel", request, Forward(context)))
        return wire.FreeSerializedModelResponse()

    async def WatchModel(self, request: wire.WatchModelRequest, context: Context) -> None:
        """Merge the engines' streams; report an engine that is lost, and watch it again when it is back.

        Unless engines are named, those that join or get the model meanwhile are watched too.
        """
        forward = Forward(context)
        if request.model_name:
            question = wire.GetModelRequest(model_name=request.model_name, engine_ids=request.engine_ids)
            outcomes = await self._ask_addressed("GetModel", question, forward)
        else:
            outcomes = await self._ask_addressed(
                "ListModels", wire.ListModelsRequest(engine_ids=request.engine_ids), forward
            )
        answers(outcomes)
        watch = ModelWatch(self._pool, forward, request.model_name, context)
        await watch.run([outcome.engine for outcome in outcomes], named=bool(request.engine_ids))

    async def _verb(self, verb: str, request: Any, model_name: str, context: Context) -> list[model_pb2.ModelInfo]:
        """Carry out a verb, then poll each engine, so that the next request sees the model's new state."""
        return _by_engine(await self._ask_addressed(verb, request, Forward(context), changing=True), model_name)

    async def _ask_addressed(
        self, method: str, request: Any, forward: Forward, *, changing: bool = False
    ) -> list[Outcome[Any]]:
        engines = self._pool.addressed(request.engine_ids)
        own = _own(request, "engine_ids")

        async def ask(engine: Engine) -> Any:
            try:
                answer = await forward.ask(engine, getattr(engine.models, method), own)
            except CallError as error:
                if changing and error.reached:
                    await engine.refresh()
                raise
            if changing:
                await engine.refresh()
            return answer

        outcomes = await ask_each(engines, ask)
        return outcomes if request.engine_ids else knowing_model(outcomes)


def _own(request: Any, addressing: str) -> Any:
    """Copy a request without the field that addresses engines."""
    own = type(request)()
    own.CopyFrom(request)
    own.ClearField(addressing)
    return own


def _by_engine(outcomes: Sequence[Outcome[Any]], model_name: str) -> list[model_pb2.ModelInfo]:
    answers(outcomes)
    return [model for outcome in outcomes for model in _models(outcome, model_name)]


def _models(outcome: Outcome[Any], model_name: str) -> list[model_pb2.ModelInfo]:
    """Return what one engine answered, or its failure with the state of the model there."""
    if outcome.error is not None:
        return [_failed(outcome.engine, model_name, outcome.error)]
    answer: Any = outcome.answer
    return list(answer.models if hasattr(answer, "models") else answer.engines)


def _adapters(outcomes: Sequence[Outcome[Any]], model_name: str) -> list[model_pb2.AdapterInfo]:
    """Return what the engines answered, and the failures of those that failed."""
    answers(outcomes)
    found: list[model_pb2.AdapterInfo] = []
    for outcome in outcomes:
        if outcome.error is not None:
            found.append(
                model_pb2.AdapterInfo(model_name=model_name, engine=outcome.engine.name, failure=outcome.error.status)
            )
        else:
            answer: Any = outcome.answer
            found += answer.adapters if hasattr(answer, "adapters") else answer.engines
    return found


def _failed(engine: Engine, model_name: str, error: CallError) -> model_pb2.ModelInfo:
    """Describe a model on an engine that failed: state UNSPECIFIED if unreachable, RELEASED if it has no such model."""
    if error.reason == "ENGINE_UNREACHABLE":
        return model_pb2.ModelInfo(model_name=model_name, engine=engine.name, failure=error.status)
    info = model_pb2.ModelInfo(model_name=model_name, engine=engine.name, state=model_pb2.MODEL_STATE_RELEASED)
    if model_name in engine.view.models:
        info.CopyFrom(engine.view.models[model_name])
    info.failure.CopyFrom(error.status)
    return info
