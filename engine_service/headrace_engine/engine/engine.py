"""The engine's asynchronous API: models, requests and results, without gRPC."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from headrace_engine.config import ModelFormat, RuntimeConfig
from headrace_engine.engine.config.field_checks import check_ids
from headrace_engine.engine.config.options import API_VERSION, FEATURES, EngineOptions
from headrace_engine.engine.models.core_link import CoreLauncher
from headrace_engine.engine.models.kept_models import Replaced
from headrace_engine.engine.models.memory_models import MemoryModels
from headrace_engine.engine.models.registry import ModelRegistry
from headrace_engine.engine.models.serializing import Serializer, Serializing
from headrace_engine.engine.models.statistics_view import devices_of, engine_stat
from headrace_engine.engine.requests.admission import Admission
from headrace_engine.engine.requests.embeddings import Embeddings
from headrace_engine.engine.requests.reading import Reading, page_of
from headrace_engine.engine.requests.registry import RequestRegistry
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.engine.sessions.load import model_loads
from headrace_engine.engine.sessions.session_update import ModelLoad
from headrace_engine.engine.sessions.sessions import Sessions
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import Unavailable, quoted
from headrace_engine.model_types import ModelDescription, ModelProgress, ModelView, SerializedModel, ServerInfo
from headrace_engine.request_types import (
    AcceptedRequest,
    Chat,
    Detokenized,
    Embedding,
    RequestView,
    StartRequest,
    Tokenized,
)
from headrace_engine.result_types import Elements, FinishReason, ReadResult, SequenceView
from headrace_engine.stat_types import EngineStat


class Engine:
    """Serves models. All methods belong to one event loop.

    Args:
        options: settings of this engine.
        launcher: starts cores, as processes or as threads.
        clock: seconds since the Unix epoch.
    """

    def __init__(
        self,
        options: EngineOptions,
        launcher: CoreLauncher,
        clock: Clock = time.time,
        serializer: Serializer | None = None,
    ) -> None:
        self.name = options.name
        self.instance_id = secrets.token_hex(8)
        self._options = options
        self._clock = clock
        self._start_time = clock()
        self._draining = False
        self.pools = WorkPools(options.file_limit)
        self._memory = MemoryModels()
        options = replace(options, memory_dir=self._memory.folder)
        self._models = ModelRegistry(options, launcher, self.pools, self._memory, clock)
        self._serializing = Serializing(options, self._models, self._memory, self.pools, serializer)
        self._registry = RequestRegistry(options.name, self.instance_id, clock)
        self.arriving = self._registry.keys.arriving
        self._admission = Admission(self._registry, self._models.get, self._refuse_while_draining, clock)
        self.sessions = Sessions(self._registry.find, self._loads)
        self._reading = Reading(self.sessions.streams)
        self._embeddings = Embeddings(self._admission.accept, self._registry, self._reading)

    def _loads(self) -> list[ModelLoad]:
        return model_loads(self._models.all(), draining=self._draining)

    @property
    def draining(self) -> bool:
        """True if the engine accepts no new requests and is shutting down."""
        return self._draining

    async def start(self, declared: Sequence[RuntimeConfig] = ()) -> list[Replaced]:
        """Restore the models and states kept from before a restart. Their verbs run in the background.

        Args:
            declared: configs that the caller installs next, each instead of the kept model of its name.

        Returns:
            The kept models whose config a declared config changes.

        Raises:
            InvalidArgument, BadModel: a declared config is wrong.
            FailedPrecondition: the state directory cannot be used, or another engine uses it.
        """
        return await self._models.restore(declared)

    def refuse(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    async def drain(self, limit: float) -> None:
        """Refuse new requests, let running ones go on for at most `limit` seconds, then end them with DRAINED."""
        self.refuse()
        await self._models.drain(limit)
        self.sessions.drain()

    async def close(self) -> None:
        """End all cores and side processes."""
        self.refuse()
        self._registry.close()
        await self._models.close()
        self._memory.close()

    @property
    def live_requests(self) -> int:
        """Number of requests that have not ended."""
        return sum(not request.ended for request in self._registry)

    async def install_model(self, config: RuntimeConfig, *, no_wait: bool = False) -> ModelView:
        """Check a config and read the model's files, to INITIAL.

        Raises:
            InvalidArgument, BadModel: the config or the files are wrong.
            AlreadyExists: the name has another config.
        """
        self._refuse_while_draining()
        return await self._models.install(config, no_wait=no_wait)

    async def start_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        """Load a model onto its device and warm it up, to RUNNING."""
        self._refuse_while_draining()
        return await self._models.start(model_name, no_wait=no_wait)

    async def stop_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        """Let running requests end, then end the core and free its memory, to STOPPED."""
        return await self._models.stop(model_name, no_wait=no_wait)

    async def release_model(self, model_name: str, *, no_wait: bool = False) -> ModelView:
        """Free the model and its name. Logs of its requests stay until they are released."""
        return await self._models.release(model_name, no_wait=no_wait)

    def get_model(self, model_name: str) -> ModelView:
        """Return the current state of a model, with its effective config."""
        return self._models.get(model_name).view()

    def list_models(self) -> list[ModelView]:
        """Return all models, sorted by name, without their configs."""
        return [model.view(with_effective=False) for model in self._models.all()]

    def watch_model(self, model_name: str) -> AsyncGenerator[ModelView, None]:
        """Yield the present view, then every change, until the model is released. "": all models, for ever."""
        return self._models.watch(model_name)

    async def inspect_model(
        self,
        model_path: str,
        *,
        file_prefix: str = "",
        revision: str = "",
        hub: str = "",
        format: ModelFormat | None = None,  # noqa: A002
    ) -> ModelDescription:
        """Describe the model at a path, without installing it."""
        source = RuntimeConfig(
            model_path=model_path, file_prefix=file_prefix, revision=revision, hub=hub, format=format
        )
        return await self._models.inspect(source)

    def serialize_model(
        self, config: RuntimeConfig, output_dir: str, *, skip_if_exists: bool = False
    ) -> AsyncGenerator[ModelProgress | SerializedModel, None]:
        """Write a model in our own format; yield progress, and at last what was written. Close it to end the work.

        Args:
            config: name of the files, the model, and how its weights are stored; nothing else may be set.
            output_dir: folder on this host; "": in memory.
            skip_if_exists: keep files that were made of the same model in the same way.
        """
        self._refuse_while_draining()
        return self._serializing.serialize(config, output_dir, skip_if_exists=skip_if_exists)

    def free_serialized_model(self, name: str) -> None:
        """Delete a model in memory, once no installed model was made of it."""
        self._serializing.free(name)

    async def start_request(self, request: StartRequest) -> AcceptedRequest:
        """Accept a request or raise the reason for refusing it. Idempotent by (owner, request_id, handover)."""
        return await self._admission.start(request)

    async def stop_request(self, handle: str, owner: str) -> tuple[SequenceView, ...]:
        """End a request with STOPPED, unless it has ended already."""
        request = self._registry.find(handle, owner)
        request.end(FinishReason.STOPPED)
        return tuple(sequence.view() for sequence in request.sequences)

    async def release_request(self, handle: str, owner: str) -> None:
        """End a request and free its logs. Unknown and released requests are ignored."""
        request = self._registry.find_or_none(handle, owner)
        if request is not None:
            request.end(FinishReason.STOPPED)
            self._registry.release(request)

    async def sync_request(
        self, *, handle: str | None = None, model_name: str | None = None, owner: str = ""
    ) -> list[RequestView]:
        """Wait until a request has ended, or all that the owner has started on a model so far."""
        if handle is not None:
            return await self._reading.sync([self._registry.find(handle, owner)])
        self._models.get(model_name or "")
        return await self._reading.sync_all(self._registry.of_owner(owner, model_name or ""))

    async def get_request(
        self,
        *,
        handle: str | None = None,
        request_id: str | None = None,
        owner: str = "",
        wait: float = 0.0,
        index: int = 0,
        from_position: int | None = None,
        prompt_logprobs_from: int | None = None,
    ) -> tuple[RequestView, Elements | None]:
        """Return a request; wait up to `wait` seconds for unread tokens or, without a position, for its end."""
        request = await self._registry.find_either(handle, request_id, owner)
        return await self._reading.get(request, index, from_position, prompt_logprobs_from, wait)

    def list_requests(
        self, owner: str, *, model_name: str = "", running_only: bool = False, page_size: int = 0, page_token: str = ""
    ) -> tuple[list[RequestView], str]:
        """Return a page of the owner's requests, newest first, and the token of the next page ("" after the last)."""
        mine = self._registry.of_owner(owner, model_name)
        return page_of([each for each in mine if not (running_only and each.ended)], page_size, page_token)

    def read(self, handle: str, index: int, from_position: int, owner: str) -> AsyncGenerator[ReadResult, None]:
        """Yield the tokens of one sequence from a position on, then its end.

        Raises:
            NotFound, OutOfRange: no such request, index or position; raised at the call.
        """
        return self._reading.follow(self._registry.find(handle, owner), index, from_position)

    async def generate(
        self, request: StartRequest
    ) -> AsyncGenerator[tuple[AcceptedRequest | None, int, ReadResult | None], None]:
        """Start a request, yield its results, and release it. Closing the iterator stops the request."""
        accepted = await self._admission.accept(request)
        try:
            yield accepted, 0, None
            found = self._registry.find(accepted.handle, request.owner)
            async with aclosing(self._reading.generated(found)) as results:
                async for index, result in results:
                    yield None, index, result
        finally:
            await self.release_request(accepted.handle, request.owner)

    async def embed(self, requests: Sequence[StartRequest], *, normalize: bool) -> list[Embedding]:
        """Return the embedding of each prompt, all of one model. Cancelling the call stops them.

        Raises:
            HeadraceError: as `start_request`; InvalidArgument names the input.
        """
        effective = self._models.get(requests[0].model_name).effective
        return await self._embeddings.compute(requests, effective.config.max_length, normalize=normalize)

    def engine_stats(self, model_name: str = "") -> list[EngineStat]:
        """Return the statistics of one model, or of all."""
        models = [self._models.get(model_name)] if model_name else self._models.all()
        return [engine_stat(model, self.name, self.instance_id, self._clock()) for model in models]

    def server_info(self) -> ServerInfo:
        """Describe the engine and its features."""
        models = self._models.all()
        return ServerInfo(
            name=self.name,
            instance_id=self.instance_id,
            api_version=API_VERSION,
            build=self._options.build,
            features=FEATURES,
            start_time=self._start_time,
            devices=devices_of(models),
            core_epoch=max((model.core_epoch for model in models), default=0),
            draining=self._draining,
        )

    async def tokenize(
        self, model_name: str, prompt: str | Chat, add_special_tokens: bool | None = None, party: str = ""
    ) -> Tokenized:
        """Return the ids of a prompt, as start_request would use them, and its text. `party` owns the work."""
        prepared = self._models.prepared(model_name)
        return await prepared.text.tokenize(prompt, add_special_tokens, prepared.max_length, party)

    async def detokenize(
        self, model_name: str, token_ids: Sequence[int], skip_special_tokens: bool, party: str = ""
    ) -> Detokenized:
        """Return the text of ids, and the bytes of each. `party` owns the work."""
        prepared = self._models.prepared(model_name)
        check_ids("token_ids", token_ids, prepared.files.spec.vocab_size, prepared.holes)
        return await prepared.text.detokenize(token_ids, skip_special_tokens, party)

    def _refuse_while_draining(self) -> None:
        if self._draining:
            raise Unavailable(f"engine {quoted(self.name)} is shutting down", retry_after=1.0)
