"""Client methods about models and servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from google.protobuf.message import Message
from headrace_proto.v1 import engine_service_pb2 as engine_wire
from headrace_proto.v1 import model_service_pb2 as wire

from headrace._api.connection import Connection
from headrace._transport.message_iterator import MessageIterator
from headrace._values import calls
from headrace._values.calls import ENGINES, MODELS
from headrace._values.convert_models import (
    description_of,
    detokenized_of,
    engines_of,
    model_of,
    models_of,
    server_of,
    stats_of,
    tokenized_of,
)
from headrace._values.fill import fill
from headrace._values.prompt import ChatMessages, Prompt
from headrace.fields import ChatFields, InstallFields
from headrace.model_types import (
    Detokenized,
    EngineStat,
    ModelDescription,
    ModelInfo,
    ServerInfo,
    Tokenized,
)

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class ModelCalls:
    """Methods to install, start and watch models, and to get information and statistics of servers.

    Through a gateway a model call goes to every engine, or to those in `engine_ids`. It returns one entry per engine,
    with the failure of an engine where it failed, and raises only if it failed on all of them.

    `timeout` is in seconds. `install_model`, `start_model`, `stop_model` and `release_model` wait without limit by
    default. After a timeout the operation continues on the engines, and calling the method again waits for it. The
    other calls have the client's timeout by default.
    """

    _connection: Connection

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
        request = wire.StartModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids, "no_wait": no_wait})
        return self._call(f"{MODELS}/StartModel", request, wire.StartModelResponse, engines_of, timeout)

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
        request = wire.StopModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids, "no_wait": no_wait})
        return self._call(f"{MODELS}/StopModel", request, wire.StopModelResponse, engines_of, timeout)

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
        request = wire.ReleaseModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids, "no_wait": no_wait})
        return self._call(f"{MODELS}/ReleaseModel", request, wire.ReleaseModelResponse, engines_of, timeout)

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

    def tokenize(
        self,
        model: str,
        prompt: Prompt | None = None,
        *,
        text: str | None = None,
        messages: ChatMessages | None = None,
        timeout: float | None = None,
        **fields: Unpack[ChatFields],
    ) -> Tokenized:
        """Return the token ids of a text or chat, as `start_request` would use them, and the rendered text.

        Args:
            model: name of the model.
            prompt: text or messages; or pass one of the next two.
            text: text, without a chat template.
            messages: conversation for the chat template, as in `start_request`.
            timeout: seconds; None: the client's timeout.
            **fields: fields of `headrace.fields.ChatFields`.

        Raises:
            TypeError: unknown keyword, or not exactly one prompt.
            NotFoundError: no such model.
            InvalidRequestError: BAD_TEMPLATE, or a prompt of the wrong type.
        """
        request = calls.tokenize(model, prompt, text=text, messages=messages, fields=fields)
        return self._quick_call(f"{ENGINES}/Tokenize", request, engine_wire.TokenizeResponse, tokenized_of, timeout)

    def detokenize(
        self, model: str, ids: Sequence[int], *, skip_special_tokens: bool | None = None, timeout: float | None = None
    ) -> Detokenized:
        """Return the text of token ids, and the bytes of each id.

        Args:
            model: name of the model.
            ids: token ids.
            skip_special_tokens: leave special tokens out of the text; None: the engine's default.
            timeout: seconds; None: the client's timeout.

        Raises:
            NotFoundError: no such model.
            InvalidRequestError: an id is outside the vocabulary.
        """
        request = engine_wire.DetokenizeRequest()
        fill(request, {"model_name": model, "token_ids": ids, "skip_special_tokens": skip_special_tokens})
        return self._quick_call(
            f"{ENGINES}/Detokenize", request, engine_wire.DetokenizeResponse, detokenized_of, timeout
        )

    def engine_stats(
        self, model: str = "", *, engine_ids: Sequence[str] = (), timeout: float | None = None
    ) -> list[EngineStat]:
        """Return current statistics, one entry per engine and model.

        Args:
            model: name of the model; "" = all.
            engine_ids: engines to ask; () = all.
            timeout: seconds; None: the client's timeout.
        """
        request = engine_wire.GetEngineStatRequest()
        fill(request, {"model_name": model, "engine_ids": engine_ids})
        answer = engine_wire.GetEngineStatResponse
        return self._quick_call(
            f"{ENGINES}/GetEngineStat", request, answer, lambda answer: stats_of(answer.stats), timeout
        )

    def watch_engine_stats(
        self, model: str = "", *, engine_ids: Sequence[str] = (), interval: float | None = None
    ) -> MessageIterator[list[EngineStat]]:
        """Iterate over statistics, as `engine_stats` returns them, until the iterator is closed.

        Args:
            model: name of the model; "" = all.
            engine_ids: engines to watch; () = all.
            interval: seconds between two results, at least 0.1; None: 1.
        """
        request = engine_wire.WatchEngineStatRequest()
        fill(request, {"model_name": model, "engine_ids": engine_ids, "interval": interval})
        return self._watch(f"{ENGINES}/WatchEngineStat", request, lambda answer: stats_of(answer.stats))

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Return name, version and features of the server.

        Args:
            timeout: seconds; None: the client's timeout.
        """
        request = engine_wire.GetServerInfoRequest()
        return self._quick_call(
            f"{ENGINES}/GetServerInfo", request, engine_wire.GetServerInfoResponse, server_of, timeout
        )

    def _call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        """Make a call and return its converted response. All methods wait here; the async client overrides it."""
        return read(self._connection.call(method, request, answer, timeout=timeout, **about))

    def _quick_call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        """Make a call with the client's timeout by default."""
        return self._call(method, request, answer, read, self._connection.limit(timeout), **about)

    def _watch(self, method: str, request: Message, read: Callable[[Any], Result]) -> MessageIterator[Result]:
        """Return an iterator over the converted responses of a streaming call."""
        return MessageIterator(self._connection.stream(method, request), read, self._connection.janitor)
