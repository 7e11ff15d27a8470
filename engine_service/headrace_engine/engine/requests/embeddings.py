"""Embeddings: prompts run through the model as requests of one token, whose last hidden states are pooled."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from headrace_engine.engine.requests.reading import Reading
from headrace_engine.engine.requests.registry import RequestRegistry
from headrace_engine.errors import (
    FieldViolation,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import AcceptedRequest, Embedding, StartRequest
from headrace_engine.result_types import FinishReason

Accept = Callable[[StartRequest], Awaitable[AcceptedRequest]]


class _Running(NamedTuple):
    accepted: AcceptedRequest
    owner: str


class Embeddings:
    """Computes embeddings, and keeps nothing of them.

    Args:
        accept: starts a request.
        registry: holds the requests while they run.
        reading: waits for their ends.
    """

    def __init__(self, accept: Accept, registry: RequestRegistry, reading: Reading) -> None:
        self._accept = accept
        self._registry = registry
        self._reading = reading

    async def compute(
        self, requests: Sequence[StartRequest], max_length: int | None, *, normalize: bool
    ) -> list[Embedding]:
        """Return the embedding of each prompt. Cancelling the call stops them all.

        A prompt for which there is no room beside the earlier ones waits for their ends.

        Args:
            requests: the prompts, each with its pooling.
            max_length: maximum length of a sequence of the model; None: not known yet.
            normalize: divide each vector by its length.

        Raises:
            HeadraceError: as starting a request; InvalidArgument names the input.
            NotFound: a request was stopped or released by its handle.
        """
        found: list[Embedding] = []
        running: deque[_Running] = deque()
        try:
            for index, request in enumerate(requests):
                one = replace(request, config=_config(request, max_length))
                while (accepted := await self._begin(index, one, last_try=not running)) is None:
                    found.append(await self._next(running, normalize))
                running.append(_Running(accepted, request.owner))
            while running:
                found.append(await self._next(running, normalize))
            return found
        finally:
            for each in running:
                self._release(each)

    async def _begin(self, index: int, request: StartRequest, *, last_try: bool) -> AcceptedRequest | None:
        """Start the request of an input; return None if there is no room and this is not the last try."""
        try:
            with _naming(index):
                accepted = await self._accept(request)
        except ResourceExhausted:
            if last_try:
                raise
            return None
        # The call reads them all until it releases them: no lease ends one that waits for its turn.
        self._registry.find(accepted.handle, request.owner).arrive()
        return accepted

    async def _next(self, running: deque[_Running], normalize: bool) -> Embedding:
        """Return the embedding of the request that was begun first, and release it."""
        found = await self._result(running[0], normalize)
        self._release(running.popleft())
        return found

    async def _result(self, one: _Running, normalize: bool) -> Embedding:
        request = self._registry.find(one.accepted.handle, one.owner)
        await self._reading.sync([request])
        sequence = request.sequences[0]
        states, end = sequence.states, sequence.log.end
        if states is None or end is None:
            raise Internal("a request that ended has no states")
        if end.error is not None:
            raise end.error
        if states.complete:
            return Embedding(states.vector(normalize=normalize), one.accepted.prompt_token_count)
        if end.finish_reason is FinishReason.DRAINED:
            raise Unavailable("the engine is shutting down", retry_after=1.0)
        if end.finish_reason is FinishReason.STOPPED:
            raise NotFound(f"the request of an input, {one.accepted.handle}, was stopped by its handle")
        raise Internal(f"the computation of an embedding ended early ({end.finish_reason})")

    def _release(self, one: _Running) -> None:
        request = self._registry.find_or_none(one.accepted.handle, one.owner)
        if request is not None:
            request.end(FinishReason.STOPPED)
            self._registry.release(request)
            request.leave()


def _config(request: StartRequest, max_length: int | None) -> GenerationConfig:
    """Return the config of a request that computes its prompt, whatever the model's own generation config says."""
    return replace(
        request.config, do_sample=False, n=1, max_new_tokens=1, min_new_tokens=0, min_length=0, max_length=max_length,
        use_prefix_cache=False,
    )  # fmt: skip


@contextmanager
def _naming(index: int) -> Iterator[None]:
    """Name the input in the errors of fields."""
    try:
        yield
    except InvalidArgument as error:
        found = [FieldViolation(f"inputs[{index}].{each.field}", each.description) for each in error.violations]
        raise InvalidArgument.fields(found, reason=error.reason) from error
