"""Running requests for callers of HTTP: started, read, and released however the reading ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from headrace import AsyncClient, AsyncResultQueue
from headrace.errors import HeadraceError
from headrace.types import FinishReason, GeneratedElements, StopMatch

from headrace_gateway.http.clients import Clients
from headrace_gateway.http.failures import Failure, failure_of

_CUT_SHORT = frozenset({FinishReason.INTERRUPTED, FinishReason.DRAINED, FinishReason.LEASE_EXPIRED})
"""Ends that are no answer: the engine would not go on."""


@dataclass
class Text:
    """The text of one sequence so far, and how it ended.

    Attributes:
        parts: pieces of its text.
        tokens: number of its tokens.
        cached: prompt tokens that came from the prefix cache.
        finish: why it ended.
        stop: the stop that ended it, if one did.
    """

    parts: list[str] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0
    finish: FinishReason = FinishReason.UNKNOWN
    stop: StopMatch | None = None

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(self.parts)

    def add(self, elements: GeneratedElements) -> None:
        """Add what was read."""
        self.parts.append(elements.text)
        self.count(elements)

    def count(self, elements: GeneratedElements) -> None:
        """Count what was read, without its text."""
        self.tokens += len(elements.ids_from_generate)
        self.cached = elements.prefix_cache_len

    def ended(self, queue: AsyncResultQueue) -> None:
        """Note how the sequence ended.

        Raises:
            Failure: 503, the engine would not go on.
        """
        self.finish = queue.finish_reason or FinishReason.UNKNOWN
        self.stop = queue.stop_match
        if self.finish in _CUT_SHORT:
            text = f"the engine ended the request after {self.tokens} tokens ({self.finish}); send it again"
            raise Failure(HTTPStatus.SERVICE_UNAVAILABLE, text, self.finish.lower(), retry_after=1.0)


class Generations:
    """Starts requests of callers, and releases what they no longer read.

    Args:
        clients: call the gateway's own services.

    Attributes:
        on_close: awaited when it closes.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def client(self) -> AsyncClient:
        """The client of the current caller."""
        return self._clients.current

    @asynccontextmanager
    async def started(
        self, model: str, prompt: Mapping[str, Any], config: Mapping[str, Any], names: Mapping[str, str]
    ) -> AsyncIterator[AsyncResultQueue]:
        """Start a request; release it at the end of the block. Yield the queue of its first sequence.

        Args:
            model: the model.
            prompt: one of text, ids and messages, and what belongs to it.
            config: fields of the generation config; those that are None are unset.
            names: what the API calls these fields, where it has another name.

        Raises:
            Failure: the request is refused, or its reading fails.
        """
        try:
            handle, queue = await self.start(model, prompt, config)
            try:
                yield queue
            finally:
                self.release(handle)
        except HeadraceError as error:
            raise failure_of(error, names) from None

    async def start(
        self, model: str, prompt: Mapping[str, Any], config: Mapping[str, Any], **more: Any
    ) -> tuple[str, AsyncResultQueue]:
        """Start a request of a model, or of the one whose adapter is named. Return handle and first queue.

        Raises:
            HeadraceError: it is refused.
            Failure: as `Adapters.find`.
        """
        model, config = await self._target(model, config)
        return await self.client.start_request(model, **prompt, **config, **more)

    async def validate(
        self, model: str, prompt: Mapping[str, Any], config: Mapping[str, Any], names: Mapping[str, str]
    ) -> None:
        """Validate a request without starting it. Arguments as `started`. Raises Failure: it would be refused."""
        try:
            model, config = await self._target(model, config)
            await self.client.validate_request(model, **prompt, **config)
        except HeadraceError as error:
            raise failure_of(error, names) from None

    async def model_of(self, name: str) -> str:
        """Return the model that a caller names, itself or by an adapter. Raises Failure as `Adapters.find`."""
        return (await self._clients.adapters.find(name)).model

    async def _target(self, model: str, config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the model that a name means, and a config with the adapter that it means."""
        if config.get("lora_name") is not None:
            return model, config
        target = await self._clients.adapters.find(model)
        return target.model, {**config, "lora_name": target.adapter}

    def hold(self) -> Callable[[], None]:
        """Keep the client of the current caller open, until what is returned is called."""
        return self._clients.hold()

    def release(self, handle: str) -> None:
        """Release a request, in the background."""
        task = asyncio.create_task(self._release(handle), name="headrace-http-release")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """Wait for the releases in progress."""
        for close in self.on_close:
            await close()
        while self._releases:
            await asyncio.wait(self._releases)

    async def _release(self, handle: str) -> None:
        with suppress(HeadraceError):  # Its lease ends what cannot be reached.
            await self.client.release_request(handle)


async def read_all(queue: AsyncResultQueue) -> Text:
    """Return the whole text of a sequence. Raises what its reading does, and Failure as `Text.ended`."""
    found = Text()
    async for elements in queue:
        found.add(elements)
    found.ended(queue)
    return found
