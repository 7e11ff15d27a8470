"""The engine's asynchronous API: models, requests and results, without gRPC."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.options import API_VERSION, FEATURES, EngineOptions
from headrace_engine.engine.cores.cached_blocks import CachedBlocks
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.models.kept_models import Replaced
from headrace_engine.engine.models.model_calls import ModelCalls
from headrace_engine.engine.models.serializing import Serializer
from headrace_engine.engine.models.statistics_view import devices_of
from headrace_engine.engine.requests.admission import Admission
from headrace_engine.engine.requests.embeddings import Embeddings
from headrace_engine.engine.requests.reading import Reading, page_of
from headrace_engine.engine.requests.registry import RequestRegistry
from headrace_engine.engine.results.statistics import Clock
from headrace_engine.engine.results.usage import Usage
from headrace_engine.engine.sessions.cache_watch import CacheWatch
from headrace_engine.engine.sessions.load import model_loads
from headrace_engine.engine.sessions.session_update import ModelLoad
from headrace_engine.engine.sessions.sessions import Sessions
from headrace_engine.model_types import ModelState, ServerInfo
from headrace_engine.request_types import (
    AcceptedRequest,
    Embedding,
    RequestView,
    StartRequest,
)
from headrace_engine.result_types import Elements, FinishReason, ReadResult, SequenceView

MOST_PROMPT_KEYS = 4096
"""Maximum number of blocks of a prompt whose keys are returned."""


class Engine(ModelCalls):
    """Serves models. All methods belong to one event loop.

    Args:
        options: settings of this engine.
        launcher: starts cores, as processes or as threads.
        clock: seconds since the Unix epoch.
        serializer: writes models in our own format, in a process; None: it is not offered.
    """

    def __init__(
        self,
        options: EngineOptions,
        launcher: CoreLauncher,
        clock: Clock = time.time,
        serializer: Serializer | None = None,
    ) -> None:
        super().__init__(options, launcher, clock, serializer)
        self._start_time = clock()
        self._registry = RequestRegistry(options.name, self.instance_id, clock)
        self.arriving = self._registry.keys.arriving
        self._admission = Admission(
            self._registry, self._models.get, self._refuse_while_draining, self._usage_of, clock
        )
        self.sessions = Sessions(self._registry.find, self._loads, self._cached, self._usage_since)
        self._reading = Reading(self.sessions.streams)
        self._embeddings = Embeddings(self._admission.accept, self._registry, self._reading)

    def _loads(self) -> list[ModelLoad]:
        return model_loads(self._models.all(), draining=self._draining)

    def _cached(self) -> dict[str, CachedBlocks]:
        """Return the cached blocks of each model that serves."""
        serving = (ModelState.RUNNING, ModelState.STOPPING)
        return {model.name: model.outputs.cached for model in self._models.all() if model.state in serving}

    def _usage_of(self, owner: str) -> Usage:
        """Return what an owner uses."""
        waiting = sum(model.outputs.queue.requests_of(owner) for model in self._models.all())
        return self._registry.budget.counts.find(owner).now(waiting)

    def _usage_since(self, version: int) -> tuple[list[Usage], int]:
        """Return what owners use whose use may have changed since a version, and the new version.

        Requests without an owner are not counted: they have no API key.
        """
        counts, newest = self._registry.budget.counts.changed(version)
        return [self._usage_of(counted.owner) for counted in counts if counted.owner], newest

    def watch_cache(self, model_name: str) -> CacheWatch:
        """Return what follows the blocks in a model's prefix cache, and their changes."""
        return CacheWatch(lambda: {name: blocks for name, blocks in self._cached().items() if name == model_name})

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

    async def start_request(self, request: StartRequest) -> AcceptedRequest:
        """Accept a request or raise the reason for refusing it. Idempotent by (owner, request_id, handover)."""
        return await self._admission.start(request)

    async def validate_request(self, request: StartRequest) -> None:
        """Raise the reason for refusing a request that lies in the request itself or in its model."""
        await self._admission.validate(request)

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

    def prompt_keys(self, handle: str, owner: str) -> list[bytes]:
        """Return the keys of the first blocks of a request's prompt; none once it has ended."""
        request = self._registry.find_or_none(handle, owner)
        if request is None or not request.sequences:
            return []
        return request.model.core.prompt_keys(request.sequences[0], MOST_PROMPT_KEYS)

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
            core_epoch=max((model.core.epoch for model in models), default=0),
            draining=self._draining,
        )
