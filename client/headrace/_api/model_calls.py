"""Client methods about models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from headrace_proto.v1 import model_service_pb2 as wire

from headrace._api.model_verbs import ModelVerbs
from headrace._transport.message_iterator import MessageIterator
from headrace._values import calls
from headrace._values.calls import MODELS
from headrace._values.convert_models import (
    adapters_of,
    description_of,
    engines_of,
    model_of,
    models_of,
    serialize_step_of,
)
from headrace._values.fill import fill
from headrace.fields import InstallFields
from headrace.model_types import AdapterInfo, ModelDescription, ModelInfo, SerializeStep


class ModelCalls(ModelVerbs):
    """Methods to install, start and watch models, and to get information and statistics of servers."""

    def get_model(self, name: str, *, engine_ids: Sequence[str] = (), timeout: float | None = None) -> list[ModelInfo]:
        """Return the state and effective config of a model on each engine.

        Args:
            name: name of the model.
            engine_ids: engines to ask; () = all.
            timeout: seconds; None: the client's timeout.

        Raises:
            NotFoundError: no such model or engine.
        """
        request = wire.GetModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids})
        return self._quick_call(f"{MODELS}/GetModel", request, wire.GetModelResponse, engines_of, timeout)

    def list_models(self, *, engine_ids: Sequence[str] = (), timeout: float | None = None) -> list[ModelInfo]:
        """Return all models with their states, ordered by model and engine; `effective` is None.

        Args:
            engine_ids: engines to ask; () = all.
            timeout: seconds; None: the client's timeout.
        """
        request = wire.ListModelsRequest()
        fill(request, {"engine_ids": engine_ids})
        return self._quick_call(
            f"{MODELS}/ListModels", request, wire.ListModelsResponse, lambda answer: models_of(answer.models), timeout
        )

    def list_adapters(
        self, model: str, *, engine_ids: Sequence[str] = (), timeout: float | None = None
    ) -> list[AdapterInfo]:
        """Return the LoRA adapters of a model, ordered by name and engine.

        Args:
            model: name of the model.
            engine_ids: engines to ask; () = all that have the model.
            timeout: seconds; None: the client's timeout.

        Raises:
            NotFoundError: no such model or engine.
        """
        request = wire.ListAdaptersRequest()
        fill(request, {"model_name": model, "engine_ids": engine_ids})
        return self._quick_call(
            f"{MODELS}/ListAdapters",
            request,
            wire.ListAdaptersResponse,
            lambda answer: adapters_of(answer.adapters),
            timeout,
        )

    def watch_model(self, name: str = "", *, engine_ids: Sequence[str] = ()) -> MessageIterator[ModelInfo]:
        """Iterate over states and progress of a model as they change, starting with the current ones.

        The iteration ends when the model is released on all engines. It raises `NotFoundError` for an unknown model or
        engine, and `UnavailableError` when the connection is lost; watch again in that case.

        Args:
            name: name of the model; "" = all models, without end.
            engine_ids: engines to watch; () = all.

        Returns:
            An iterator; `close()` or its use as a context manager ends the call.
        """
        request = wire.WatchModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids})
        return self._watch(f"{MODELS}/WatchModel", request, lambda answer: model_of(answer.model))

    def inspect_model(
        self,
        path: str,
        *,
        file_prefix: str | None = None,
        revision: str | None = None,
        hub: str | None = None,
        format: str | None = None,  # noqa: A002 - the field's name
        engine_id: str | None = None,
        timeout: float | None = None,
    ) -> ModelDescription:
        """Describe the model at a path on the engine's host without installing it.

        Args:
            path: as in `install_model`, as are the next four.
            file_prefix: base name of the files, where a directory contains several models.
            revision: revision on the hub.
            hub: address of the hub.
            format: format of the files; None: detect it.
            engine_id: engine to ask; None: any.
            timeout: seconds; None: the client's timeout.

        Raises:
            StateError: BAD_MODEL; there is no readable model.
            InvalidRequestError: the path is outside the engine's model roots.
        """
        request = wire.InspectModelRequest()
        given = {"model_path": path, "file_prefix": file_prefix, "revision": revision, "hub": hub}
        fill(request, {**given, "format": format, "engine_id": engine_id})
        return self._quick_call(f"{MODELS}/InspectModel", request, wire.InspectModelResponse, description_of, timeout)

    def serialize_model(
        self,
        name: str,
        path: str,
        *,
        output_dir: str = "",
        skip_if_exists: bool = False,
        engine_ids: Sequence[str] = (),
        **fields: Unpack[InstallFields],
    ) -> MessageIterator[SerializeStep]:
        """Write a Hugging Face model in Headrace's own format, and iterate over the progress.

        What is written is installed without the original files, and read by every backend:

            *_, last = client.serialize_model("smol", "/models/smol", output_dir="/out", weight_quant="INT8")
            client.install_model("smol", last.model.path, file_prefix=last.model.file_prefix)

        Args:
            name: base name of the files, NAME.asparam and NAME.asmodel.
            path: the model on the engine's host, as in `install_model`.
            output_dir: folder on the engine's host, inside one of its folders for writing or relative to one; "": in
                memory, as files that end with the engine or with `free_serialized_model`.
            skip_if_exists: keep files that were made of the same model in the same way.
            engine_ids: engines to write on; () = all.
            **fields: of the fields of an install file_prefix, revision, hub, dtype, weight_quant and
                weight_quant_group_size.

        Returns:
            An iterator, which ends once all engines are done. Closing it before ends the work, and leaves nothing.

        Raises:
            TypeError: unknown keyword.
            InvalidRequestError: a field is invalid, or the folder cannot be written. This and the following come from
                the iterator.
            StateError: BAD_MODEL.
            ConflictError: another call is writing these files.
        """
        request = calls.serialize_model(name, path, fields=fields)
        fill(request, {"output_dir": output_dir, "skip_if_exists": skip_if_exists, "engine_ids": engine_ids})
        return self._watch(f"{MODELS}/SerializeModel", request, serialize_step_of)

    def free_serialized_model(self, name: str, *, engine_ids: Sequence[str] = (), timeout: float | None = None) -> None:
        """Free a model that `serialize_model` wrote into memory, once no installed model was made of it.

        Args:
            name: base name of its files; one that is not there is freed already.
            engine_ids: engines to free it on; () = all.
            timeout: seconds; None: the client's timeout.
        """
        request = wire.FreeSerializedModelRequest()
        fill(request, {"name": name, "engine_ids": engine_ids})
        answer = wire.FreeSerializedModelResponse
        return self._quick_call(f"{MODELS}/FreeSerializedModel", request, answer, lambda _: None, timeout)
