"""Embeddings: prompts run through the model as requests of one token, whose last hidden states are pooled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from headrace_engine.engine.requests.reading import Reading
from headrace_engine.engine.requests.registry import RequestRegistry
from headrace_engine.errors import FieldViolation, Internal, InvalidArgument, Unavailable
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import AcceptedRequest, Embedding, StartRequest
from headrace_engine.result_types import FinishReason

Accept = Callable[[StartRequest], Awaitable[AcceptedRequest]]


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

        Args:
            requests: the prompts, each with its pooling.
            max_length: maximum length of a sequence of the model; None: not known yet.
            normalize: divide each vector by its length.

        Raises:
            HeadraceError: as starting a request; InvalidArgument names the input.
        """
        accepted: list[AcceptedRequest] = []
        try:
            for index, request in enumerate(requests):
                with _naming(index):
                    accepted.append(await self._accept(replace(request, config=_config(request, max_length))))
                # The call reads them all until it releases them: no lease ends one that waits for its turn.
                self._registry.find(accepted[-1].handle, request.owner).arrive()
            owners = [request.owner for request in requests]
            return [await self._result(*each, normalize) for each in zip(accepted, owners, strict=True)]
        finally:
            for each, request in zip(accepted, requests, strict=False):
                self._release(each.handle, request.owner)

    async def _result(self, accepted: AcceptedRequest, owner: str, normalize: bool) -> Embedding:
        request = self._registry.find(accepted.handle, owner)
        await self._reading.sync([request])
        sequence = request.sequences[0]
        states, end = sequence.states, sequence.log.end
        if states is None or end is None:
            raise Internal("a request that ended has no states")
        if end.error is not None:
            raise end.error
        if states.complete:
            return Embedding(states.vector(normalize=normalize), accepted.prompt_token_count)
        if end.finish_reason is FinishReason.DRAINED:
            raise Unavailable("the engine is shutting down", retry_after=1.0)
        raise Unavailable(f"the embedding was ended early ({end.finish_reason})", reason="CORE_RESTARTING")

    def _release(self, handle: str, owner: str) -> None:
        request = self._registry.find_or_none(handle, owner)
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
