"""The service `vllm.grpc.engine.VllmEngine` over an engine's own calls, for one of its models."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as wire

from headrace_engine.engine.engine import Engine
from headrace_engine.errors import AlreadyExists, HeadraceError, InvalidArgument
from headrace_engine.request_types import Pooling, StartRequest
from headrace_engine.service.convert.callers import caller
from headrace_engine.service.convert.refusals import required
from headrace_engine.service.convert.sizes import few
from headrace_engine.service.failures import closing
from headrace_engine.service.vllm import facts
from headrace_engine.service.vllm.answers import Answer
from headrace_engine.service.vllm.kv_events import KvEvents, PromptBlocks
from headrace_engine.service.vllm.starts import check_request, start_of

_LOOK_SECONDS = 0.1
"""Seconds between looks for events of the prefix cache."""

_KEYS_AT_ONCE = 1024
"""Blocks in one batch of events, at most: some 100 KB."""

_LAST_NUMBER = 2**63 - 1
"""Largest number of a batch of events that a subscriber may have seen: some are left for those to come."""

_PIECE = 1 << 20
"""Bytes of a tokenizer in one message."""


class _Run:
    """A Generate in progress.

    Attributes:
        handle: of its request; "": not accepted yet.
        aborted: Abort has named it.
    """

    def __init__(self) -> None:
        self.handle = ""
        self.aborted = False


class VllmServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Each method is one or two calls of the engine; exceptions become statuses in `failures`.

    A request lasts as long as its call: dropping the stream ends it, as Abort does.

    Args:
        engine: answers the calls.
        model_name: the model.
    """

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine, self._model = engine, model_name
        self._running: dict[str, _Run] = {}
        self._blocks = PromptBlocks()
        self._received = 0.0

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Start a request, send its tokens, and release it."""
        self._received = time.time()
        check_request(request)
        params = request.sampling_params
        ids = await self._prompt(request)
        start = start_of(self._model, ids, params)
        asks = params.HasField("prompt_logprobs")
        answer = Answer(ids, streams=request.stream, stop_token_ids=params.stop_token_ids, asks_prompt=asks)
        with self._entered(request.request_id) as run:
            async with closing(self._engine.generate(start)) as results:
                async for accepted, index, result in results:
                    if accepted is not None:
                        await self._accepted(run, accepted.handle, ids)
                    if result is not None:
                        for message in answer.take(index, result):
                            yield message

    async def Embed(self, request: Any, context: Any) -> Any:
        """Return the last hidden state of a prompt, divided by its length."""
        start = StartRequest(
            model_name=self._model,
            prompt=few(request.tokenized.input_ids),
            caller=caller(),
            pooling=Pooling.LAST,
        )
        (found,) = await self._engine.embed([start], normalize=True)
        return wire.EmbedResponse(
            embedding=found.values, prompt_tokens=found.prompt_token_count, embedding_dim=len(found.values)
        )

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Tell whether the model takes requests."""
        try:
            view = self._engine.get_model(self._model)
        except HeadraceError as error:
            return wire.HealthCheckResponse(healthy=False, message=error.message)
        healthy = view.serving and not self._engine.draining
        return wire.HealthCheckResponse(healthy=healthy, message=f'model "{self._model}" is {view.state}')

    async def Abort(self, request: Any, context: Any) -> Any:
        """End requests; those that are not in progress are ignored, since they may just have ended."""
        for request_id in request.request_ids:
            if (run := self._running.get(request_id)) is not None:
                run.aborted = True
                await self._stop(run)
        return wire.AbortResponse()

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        """Describe the model."""
        tokenizer = await self._engine.tokenizer_files(self._model)
        return facts.model_info(self._engine.get_model(self._model), tokenizer)

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """Describe the engine."""
        view = self._engine.get_model(self._model)
        return facts.server_info(self._engine.server_info(), self._stat(), view, self._received)

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """Tell the load."""
        view = self._engine.get_model(self._model)
        return facts.loads(self._engine.server_info(), self._stat(), view, self._engine.tokens_to_prefill(self._model))

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Send the tokenizer's files as a zip."""
        packed = await self._engine.tokenizer_archive(self._model)
        digest = hashlib.sha256(packed).hexdigest()
        for begin in range(0, len(packed), _PIECE):
            last = begin + _PIECE >= len(packed)
            yield common_pb2.GetTokenizerChunk(data=packed[begin : begin + _PIECE], sha256=digest if last else "")

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Send what the prefix cache has, and then its changes, until the client leaves.

        Whoever comes back is sent everything again, after a `cleared`, under the numbers after its last one.
        """
        if (last := request.start_sequence_number) > _LAST_NUMBER:
            raise InvalidArgument.field("start_sequence_number", f"= {last}; allowed: at most {_LAST_NUMBER}")
        watch = self._engine.watch_cache(self._model)
        events = KvEvents(self._blocks, last + 1)
        while True:
            more = watch.poll()
            taken = watch.take(_KEYS_AT_ONCE)[0] if more else []
            if (batch := events.batch(taken)) is not None:
                yield batch
            await asyncio.sleep(0 if watch.pending else _LOOK_SECONDS)

    async def FlushCache(self, request: Any, context: Any) -> Any:
        """Refuse: blocks of the prefix cache are evicted when others need them."""
        raise _lacking("FlushCache")

    async def StartProfile(self, request: Any, context: Any) -> Any:
        """Refuse: there is no profiler."""
        raise _lacking("StartProfile")

    async def StopProfile(self, request: Any, context: Any) -> Any:
        """Refuse: there is no profiler."""
        raise _lacking("StopProfile")

    async def _prompt(self, request: Any) -> Sequence[int]:
        if required(request, "input") == "tokenized":
            return few(request.tokenized.input_ids)
        return (await self._engine.tokenize(self._model, request.text, None, caller())).token_ids

    @contextmanager
    def _entered(self, request_id: str) -> Iterator[_Run]:
        """Know a Generate by its id while it is in progress.

        Raises:
            AlreadyExists: another one has this id.
        """
        run = _Run()
        if not request_id:
            yield run
            return
        if request_id in self._running:
            raise AlreadyExists(f"request_id {request_id!r} is in progress", reason="REQUEST_ID_REUSED")
        self._running[request_id] = run
        try:
            yield run
        finally:
            del self._running[request_id]

    async def _accepted(self, run: _Run, handle: str, ids: Sequence[int]) -> None:
        run.handle = handle
        effective = self._engine.get_model(self._model).effective
        block_size = 0 if effective is None else effective.config.block_size or 0
        self._blocks.learn(self._engine.prompt_keys(handle, ""), ids, block_size)
        if run.aborted:
            await self._stop(run)

    async def _stop(self, run: _Run) -> None:
        if run.handle:
            await self._engine.stop_request(run.handle, "")

    def _stat(self) -> Any:
        (stat,) = self._engine.engine_stats(self._model)
        return stat


def _lacking(name: str) -> InvalidArgument:
    return InvalidArgument(f"{name} is not supported here", reason="NOT_SUPPORTED")
