"""ModelService: install, start, stop and inspect models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from headrace_proto.v1 import model_service_pb2 as wire
from headrace_proto.v1.model_service_pb2_grpc import ModelServiceServicer

from headrace_engine.config import Adapter
from headrace_engine.engine.config.fields import RUNTIME
from headrace_engine.engine.engine import Engine
from headrace_engine.model_types import SerializedModel
from headrace_engine.service.convert.addressing import adapter_infos, check_addressed, model_infos
from headrace_engine.service.convert.config import MODEL_FORMAT, RUNTIME_CONFIG
from headrace_engine.service.convert.refusals import refuse_unknown, refuse_unknown_values
from headrace_engine.service.convert.results import ADAPTER, DESCRIPTION, MODEL, PROGRESS, SERIALIZED
from headrace_engine.service.convert.sizes import refuse_large_config
from headrace_engine.service.failures import closing


class ModelServicer(ModelServiceServicer):
    """Each method is one call of the engine; exceptions become statuses in `failures`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def InstallModel(self, request: wire.InstallModelRequest, context: Any) -> wire.InstallModelResponse:
        """Check a config and read the model."""
        check_addressed(self._engine.name, request.engine_ids)
        refuse_large_config(request.config, RUNTIME)
        refuse_unknown(request)
        config = RUNTIME_CONFIG.to_domain(request.config)
        view = await self._engine.install_model(config, no_wait=request.no_wait)
        return wire.InstallModelResponse(engines=model_infos(view, request.engine_ids))

    async def StartModel(self, request: wire.StartModelRequest, context: Any) -> wire.StartModelResponse:
        """Load a model and warm it up."""
        check_addressed(self._engine.name, request.engine_ids)
        view = await self._engine.start_model(request.model_name, no_wait=request.no_wait)
        return wire.StartModelResponse(engines=model_infos(view, request.engine_ids))

    async def StopModel(self, request: wire.StopModelRequest, context: Any) -> wire.StopModelResponse:
        """Let requests finish, then free the memory that the model computes with."""
        check_addressed(self._engine.name, request.engine_ids)
        view = await self._engine.stop_model(request.model_name, no_wait=request.no_wait)
        return wire.StopModelResponse(engines=model_infos(view, request.engine_ids))

    async def ReleaseModel(self, request: wire.ReleaseModelRequest, context: Any) -> wire.ReleaseModelResponse:
        """Free everything of a model, its name included."""
        check_addressed(self._engine.name, request.engine_ids)
        view = await self._engine.release_model(request.model_name, no_wait=request.no_wait)
        return wire.ReleaseModelResponse(engines=model_infos(view, request.engine_ids))

    async def GetModel(self, request: wire.GetModelRequest, context: Any) -> wire.GetModelResponse:
        """Return state and effective config of one model."""
        check_addressed(self._engine.name, request.engine_ids)
        view = self._engine.get_model(request.model_name)
        return wire.GetModelResponse(engines=model_infos(view, request.engine_ids))

    async def ListModels(self, request: wire.ListModelsRequest, context: Any) -> wire.ListModelsResponse:
        """Return all models with their states."""
        check_addressed(self._engine.name, request.engine_ids)
        return wire.ListModelsResponse(models=map(MODEL.to_wire, self._engine.list_models()))

    async def WatchModel(self, request: wire.WatchModelRequest, context: Any) -> AsyncIterator[wire.WatchModelResponse]:
        """Send states and progress as they change."""
        check_addressed(self._engine.name, request.engine_ids)
        async with closing(self._engine.watch_model(request.model_name)) as views:
            async for view in views:
                yield wire.WatchModelResponse(model=MODEL.to_wire(view))

    async def InspectModel(self, request: wire.InspectModelRequest, context: Any) -> wire.InspectModelResponse:
        """Describe the model at a path."""
        check_addressed(self._engine.name, [request.engine_id] if request.engine_id else [])
        refuse_unknown_values(request)
        description = await self._engine.inspect_model(
            request.model_path,
            file_prefix=request.file_prefix,
            revision=request.revision,
            hub=request.hub,
            format=MODEL_FORMAT.read(request.format),
        )
        return wire.InspectModelResponse(description=DESCRIPTION.to_wire(description), engine=self._engine.name)

    async def SerializeModel(
        self, request: wire.SerializeModelRequest, context: Any
    ) -> AsyncIterator[wire.SerializeModelResponse]:
        """Write a model in our own format, and send its progress."""
        check_addressed(self._engine.name, request.engine_ids)
        refuse_unknown(request)
        name, config = self._engine.name, RUNTIME_CONFIG.to_domain(request.config)
        steps = self._engine.serialize_model(config, request.output_dir, skip_if_exists=request.skip_if_exists)
        async with closing(steps):
            async for step in steps:
                if isinstance(step, SerializedModel):
                    yield wire.SerializeModelResponse(engine=name, model=SERIALIZED.to_wire(step))
                else:
                    yield wire.SerializeModelResponse(engine=name, progress=PROGRESS.to_wire(step))

    async def LoadAdapter(self, request: wire.LoadAdapterRequest, context: Any) -> wire.LoadAdapterResponse:
        """Load an adapter of a model."""
        check_addressed(self._engine.name, request.engine_ids)
        refuse_unknown(request)
        view = await self._engine.load_adapter(request.model_name, Adapter(request.name, request.path))
        return wire.LoadAdapterResponse(engines=adapter_infos(view, request.engine_ids))

    async def UnloadAdapter(self, request: wire.UnloadAdapterRequest, context: Any) -> wire.UnloadAdapterResponse:
        """Unload an adapter of a model."""
        check_addressed(self._engine.name, request.engine_ids)
        view = await self._engine.unload_adapter(request.model_name, request.name)
        return wire.UnloadAdapterResponse(engines=adapter_infos(view, request.engine_ids))

    async def ListAdapters(self, request: wire.ListAdaptersRequest, context: Any) -> wire.ListAdaptersResponse:
        """Return the adapters of a model."""
        check_addressed(self._engine.name, request.engine_ids)
        return wire.ListAdaptersResponse(adapters=map(ADAPTER.to_wire, self._engine.list_adapters(request.model_name)))

    async def FreeSerializedModel(
        self, request: wire.FreeSerializedModelRequest, context: Any
    ) -> wire.FreeSerializedModelResponse:
        """Free a model in memory."""
        check_addressed(self._engine.name, request.engine_ids)
        self._engine.free_serialized_model(request.name)
        return wire.FreeSerializedModelResponse()
