"""Client methods that change the state of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from headrace_proto.v1 import model_service_pb2 as wire

from headrace._api.server_calls import ServerCalls
from headrace._values import calls
from headrace._values.calls import MODELS
from headrace._values.convert_models import adapters_of, engines_of
from headrace._values.fill import fill
from headrace.fields import InstallFields
from headrace.model_types import AdapterInfo, ModelInfo


class ModelVerbs(ServerCalls):
    """Methods to install, start, stop and release models, and to load and unload their adapters.

    Through a gateway a model call goes to every engine, or to those in `engine_ids`. It returns one entry per engine,
    with the failure of an engine where it failed, and raises only if it failed on all of them.

    `timeout` is in seconds. These methods wait without limit by default. After a timeout the operation continues on the
    engines, and calling the method again waits for it. The other calls have the client's timeout by default.
    """

    def install_model(
        self,
        name: str,
        path: str,
        *,
        engine_ids: Sequence[str] = (),
        no_wait: bool = False,
        timeout: float | None = None,
        **fields: Unpack[InstallFields],
    ) -> list[ModelInfo]:
        """Install a model: check its config, fetch its files and read them. Its state is INITIAL afterwards.

        Installing a model again with the same config changes nothing. To follow the progress, see `start_model`; an
        install ends with INITIAL or FAILED.

        Args:
            name: name of the model in all later calls.
            path: directory or file on the engine's host, inside one of its model roots or relative to one; or a name
                on a model hub.
            engine_ids: engines to install on; () = all.
            no_wait: return at once; follow with `watch_model`.
            timeout: seconds to wait; None: without limit.
            **fields: fields of `headrace.fields.InstallFields`.

        Returns:
            The model on each engine.

        Raises:
            TypeError: unknown keyword.
            InvalidRequestError: a field is invalid, or not supported by the engine.
            ConflictError: the name is in use with another config.
            StateError: BAD_MODEL (the files cannot be used) or OUT_OF_MEMORY.
        """
        request = calls.install_model(name, path, engine_ids=engine_ids, no_wait=no_wait, fields=fields)
        return self._call(f"{MODELS}/InstallModel", request, wire.InstallModelResponse, engines_of, timeout)

    def start_model(
        self, name: str, *, engine_ids: Sequence[str] = (), no_wait: bool = False, timeout: float | None = None
    ) -> list[ModelInfo]:
        """Load an installed model onto its devices and warm it up. Its state is RUNNING afterwards.

        This may take minutes. To show the progress, start without waiting and watch:

            client.start_model("smol", no_wait=True)
            for model in client.watch_model("smol"):
                print(model.engine, model.state, model.progress)  # phase, bytes done, total bytes
                if model.state in ("RUNNING", "FAILED"):
                    break

        Args:
            name: name of the model.
            engine_ids: engines to start it on; () = all.
            no_wait: return at once; follow with `watch_model`.
            timeout: seconds to wait; None: without limit.

        Returns:
            The model on each engine.

        Raises:
            NotFoundError: no such model or engine.
            StateError: WRONG_STATE, BAD_MODEL, or OUT_OF_MEMORY; the message of the last one names fields to lower.
        """
        request, answer = wire.StartModelRequest(), wire.StartModelResponse
        return self._change(request, answer, name, engine_ids, no_wait=no_wait, timeout=timeout)

    def stop_model(
        self, name: str, *, engine_ids: Sequence[str] = (), no_wait: bool = False, timeout: float | None = None
    ) -> list[ModelInfo]:
        """Stop a model: let its requests finish, up to its drain_limit, and free its device memory.

        Its state is STOPPED afterwards, and it can be started again.

        Args:
            name: name of the model.
            engine_ids: engines to stop it on; () = all.
            no_wait: return at once; follow with `watch_model`.
            timeout: seconds to wait; None: without limit.

        Returns:
            The model on each engine.

        Raises:
            NotFoundError: no such model or engine.
            StateError: WRONG_STATE.
        """
        request, answer = wire.StopModelRequest(), wire.StopModelResponse
        return self._change(request, answer, name, engine_ids, no_wait=no_wait, timeout=timeout)

    def release_model(
        self, name: str, *, engine_ids: Sequence[str] = (), no_wait: bool = False, timeout: float | None = None
    ) -> list[ModelInfo]:
        """Release a model that does not run: free everything of it, including its name.

        Args:
            name: name of the model.
            engine_ids: engines to release it on; () = all.
            no_wait: return at once; follow with `watch_model`.
            timeout: seconds to wait; None: without limit.

        Returns:
            The model on each engine.

        Raises:
            NotFoundError: no such model or engine.
            StateError: WRONG_STATE; stop a running model first.
        """
        request, answer = wire.ReleaseModelRequest(), wire.ReleaseModelResponse
        return self._change(request, answer, name, engine_ids, no_wait=no_wait, timeout=timeout)

    def load_adapter(
        self, model: str, name: str, path: str, *, engine_ids: Sequence[str] = (), timeout: float | None = None
    ) -> list[AdapterInfo]:
        """Load a LoRA adapter for an installed model, for requests with `lora_name`.

        If `lora_max_num` adapters are loaded, the least recently used one that no request uses is unloaded. Loading the
        same content under the name again changes nothing.

        Args:
            model: name of the model.
            name: name of the adapter in all later calls.
            path: directory that PEFT wrote, or GGUF file with an adapter, on the engine's host, inside one of its model
                roots or relative to one.
            engine_ids: engines to load it on; () = all that have the model.
            timeout: seconds to wait; None: without limit.

        Returns:
            The adapter on each engine.

        Raises:
            NotFoundError: no such model or engine.
            InvalidRequestError: the name or path is wrong, the rank too large, or the model has no room for adapters.
            ConflictError: LORA_EXISTS; the name has other content.
            StateError: BAD_MODEL (the files cannot be used), LORA_IN_USE (all adapters are in use) or WRONG_STATE.
        """
        request = wire.LoadAdapterRequest()
        fill(request, {"model_name": model, "name": name, "path": path, "engine_ids": engine_ids})
        return self._call(
            f"{MODELS}/LoadAdapter",
            request,
            wire.LoadAdapterResponse,
            lambda answer: adapters_of(answer.engines),
            timeout,
        )

    def unload_adapter(
        self, model: str, name: str, *, engine_ids: Sequence[str] = (), timeout: float | None = None
    ) -> list[AdapterInfo]:
        """Unload a LoRA adapter that no request uses.

        Args:
            model: name of the model.
            name: name of the adapter.
            engine_ids: engines to unload it on; () = all that have the model.
            timeout: seconds to wait; None: without limit.

        Returns:
            What was unloaded on each engine.

        Raises:
            NotFoundError: no such model, adapter or engine.
            StateError: LORA_IN_USE or WRONG_STATE.
        """
        request = wire.UnloadAdapterRequest()
        fill(request, {"model_name": model, "name": name, "engine_ids": engine_ids})
        return self._call(
            f"{MODELS}/UnloadAdapter",
            request,
            wire.UnloadAdapterResponse,
            lambda answer: adapters_of(answer.engines),
            timeout,
        )

    def _change(
        self, request: Any, answer: Any, name: str, engine_ids: Sequence[str], *, no_wait: bool, timeout: float | None
    ) -> list[ModelInfo]:
        """Start, stop or release a model."""
        fill(request, {"model_name": name, "engine_ids": engine_ids, "no_wait": no_wait})
        method = request.DESCRIPTOR.name.removesuffix("Request")
        return self._call(f"{MODELS}/{method}", request, answer, engines_of, timeout)
