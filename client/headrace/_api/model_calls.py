"""The client's calls about models and servers."""

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
    """Installing, starting and watching models; facts and figures of servers.

    Through a gateway a model verb goes to every engine, or to those named in `engine_ids`; the answer has one entry an
    engine, with its failure where it failed. The call itself fails only if it failed on all of them.

    `timeout` is in seconds. Model verbs wait for their state however long that takes, unless a timeout is given; a verb
    that is cut goes on, and calling it again joins it. The other calls end after the client's timeout by default.
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
        """Checks a config, fetches and reads the model; then it is INITIAL. An equal config again changes nothing.

        Progress is shown as for `start_model`; the watch of an install ends at INITIAL or FAILED.

        Args:
            name: name for all later calls.
            path: directory or file on the engine's host, inside one of its model roots or relative to one, or hub name.
            engine_ids: engines to address; () = all.
            no_wait: return at once, and follow with `watch_model`.
            timeout: seconds to wait; None: until it is done.
            **fields: the fields of `headrace.fields.InstallFields`.

        Raises:
            TypeError: an unknown keyword.
            InvalidRequestError: a field is wrong, or not supported by the engine.
            ConflictError: the name is taken by another config.
            StateError: BAD_MODEL (the files), or OUT_OF_MEMORY.
        """
        request = calls.install_model(name, path, engine_ids=engine_ids, no_wait=no_wait, fields=fields)
        return self._ask(f"{MODELS}/InstallModel", request, wire.InstallModelResponse, engines_of, timeout)

    def start_model(
        self, name: str, *, engine_ids: Sequence[str] = (), no_wait: bool = False, timeout: float | None = None
    ) -> list[ModelInfo]:
        """Loads an installed model onto its devices and warms it up; then it is RUNNING and takes requests.

        That may take minutes. To show how far it is, do not wait, and watch:

            client.start_model("smol", no_wait=True)
            for model in client.watch_model("smol"):
                print(model.engine, model.state, model.progress)  # phase, bytes done, bytes in all
                if model.state in ("RUNNING", "FAILED"):
                    break

        Raises:
            NotFoundError: no such model or engine.
            StateError: WRONG_STATE, BAD_MODEL, or OUT_OF_MEMORY with what to lower.
        """
        request = wire.StartModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids, "no_wait": no_wait})
        return self._ask(f"{MODELS}/StartModel", request, wire.StartModelResponse, engines_of, timeout)

    def stop_model(
        self, name: str, *, engine_ids: Sequence[str] = (), no_wait: bool = False, timeout: float | None = None
    ) -> list[ModelInfo]:
        """Lets requests finish until the model's drain_limit, and frees KV and workspace; then it is STOPPED.

        Raises:
            NotFoundError: no such model or engine.
            StateError: WRONG_STATE.
        """
        request = wire.StopModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids, "no_wait": no_wait})
        return self._ask(f"{MODELS}/StopModel", request, wire.StopModelResponse, engines_of, timeout)

    def release_model(
        self, name: str, *, engine_ids: Sequence[str] = (), no_wait: bool = False, timeout: float | None = None
    ) -> list[ModelInfo]:
        """Frees everything of a stopped model, its name too.

        Raises:
            NotFoundError: no such model or engine.
            StateError: WRONG_STATE: it runs; stop it first.
        """
        request = wire.ReleaseModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids, "no_wait": no_wait})
        return self._ask(f"{MODELS}/ReleaseModel", request, wire.ReleaseModelResponse, engines_of, timeout)

    def get_model(self, name: str, *, engine_ids: Sequence[str] = (), timeout: float | None = None) -> list[ModelInfo]:
        """State and effective config of one model, by engine.

        Raises:
            NotFoundError: no such model or engine.
        """
        request = wire.GetModelRequest()
        fill(request, {"model_name": name, "engine_ids": engine_ids})
        return self._quick(f"{MODELS}/GetModel", request, wire.GetModelResponse, engines_of, timeout)

    def list_models(self, *, engine_ids: Sequence[str] = (), timeout: float | None = None) -> list[ModelInfo]:
        """All models with their states, by model and engine; without `effective`."""
        request = wire.ListModelsRequest()
        fill(request, {"engine_ids": engine_ids})
        return self._quick(
            f"{MODELS}/ListModels", request, wire.ListModelsResponse, lambda answer: models_of(answer.models), timeout
        )

    def watch_model(self, name: str = "", *, engine_ids: Sequence[str] = ()) -> MessageIterator[ModelInfo]:
        """States and progress as they change, the present ones first; ends when the model is released everywhere.

        Args:
            name: the model; "" = all, without an end.
            engine_ids: engines to watch; () = all.

        Iterating raises `NotFoundError` for an unknown model or engine, and `UnavailableError` when the connection is
        lost: watch again then.
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
        """What lies at a path on the engine's host, without installing it; the arguments are those of `install_model`.

        Raises:
            StateError: BAD_MODEL: no model that can be read.
            InvalidRequestError: the path is outside the engine's roots.
        """
        request = wire.InspectModelRequest()
        given = {"model_path": path, "file_prefix": file_prefix, "revision": revision, "hub": hub}
        fill(request, {**given, "format": format, "engine_id": engine_id})
        return self._quick(f"{MODELS}/InspectModel", request, wire.InspectModelResponse, description_of, timeout)

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
        """The ids that a text or a chat has, as `start_request` would use them, and the rendered text.

        Raises:
            TypeError: an unknown keyword, or not exactly one prompt.
            NotFoundError: no such model.
            InvalidRequestError: BAD_TEMPLATE, or a prompt of the wrong kind.
        """
        request = calls.tokenize(model, prompt, text=text, messages=messages, fields=fields)
        return self._quick(f"{ENGINES}/Tokenize", request, engine_wire.TokenizeResponse, tokenized_of, timeout)

    def detokenize(
        self, model: str, ids: Sequence[int], *, skip_special_tokens: bool | None = None, timeout: float | None = None
    ) -> Detokenized:
        """The text of ids, and the bytes of each.

        Raises:
            NotFoundError: no such model.
            InvalidRequestError: an id outside the vocabulary.
        """
        request = engine_wire.DetokenizeRequest()
        fill(request, {"model_name": model, "token_ids": ids, "skip_special_tokens": skip_special_tokens})
        return self._quick(f"{ENGINES}/Detokenize", request, engine_wire.DetokenizeResponse, detokenized_of, timeout)

    def engine_stats(
        self, model: str = "", *, engine_ids: Sequence[str] = (), timeout: float | None = None
    ) -> list[EngineStat]:
        """What the engines do now, one entry an engine and model; "" = all models."""
        request = engine_wire.GetEngineStatRequest()
        fill(request, {"model_name": model, "engine_ids": engine_ids})
        answer = engine_wire.GetEngineStatResponse
        return self._quick(f"{ENGINES}/GetEngineStat", request, answer, lambda answer: stats_of(answer.stats), timeout)

    def watch_engine_stats(
        self, model: str = "", *, engine_ids: Sequence[str] = (), interval: float | None = None
    ) -> MessageIterator[list[EngineStat]]:
        """The same again and again, every `interval` seconds (1 by default, at least 0.1), until closed."""
        request = engine_wire.WatchEngineStatRequest()
        fill(request, {"model_name": model, "engine_ids": engine_ids, "interval": interval})
        return self._watch(f"{ENGINES}/WatchEngineStat", request, lambda answer: stats_of(answer.stats))

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Who answers, and what it can do."""
        request = engine_wire.GetServerInfoRequest()
        return self._quick(f"{ENGINES}/GetServerInfo", request, engine_wire.GetServerInfoResponse, server_of, timeout)

    def _ask(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        """What a call answers, read. The one place in which a verb waits."""
        return read(self._connection.call(method, request, answer, timeout=timeout, **about))

    def _quick(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        """A call that ends after the client's timeout by default."""
        return self._ask(method, request, answer, read, self._connection.limit(timeout), **about)

    def _watch(self, method: str, request: Message, read: Callable[[Any], Result]) -> MessageIterator[Result]:
        """What a call answers again and again, read."""
        return MessageIterator(self._connection.stream(method, request), read, self._connection.janitor)
