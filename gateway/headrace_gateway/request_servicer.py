"""RequestService of the gateway: places requests on engines, and routes handles back to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from headrace_proto.server.interceptor import Context
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1 import request_service_pb2_grpc

from headrace_gateway import status
from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.liveness import START_SECONDS
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.engines.prefixes import pieces
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.forwarding.fan_out import together
from headrace_gateway.forwarding.forward import PROMPT_KEYS, Forward
from headrace_gateway.forwarding.keys import Keys
from headrace_gateway.forwarding.model_refusals import unknown_model
from headrace_gateway.forwarding.owed_releases import OwedReleases
from headrace_gateway.forwarding.paging import merged_page
from headrace_gateway.forwarding.processors import names_of
from headrace_gateway.forwarding.routing import Router
from headrace_gateway.sessions.sessions import Sessions
from headrace_gateway.status import CallError

Begin = Callable[[Engine], Awaitable[Any]]


class RequestServicer(request_service_pb2_grpc.RequestServiceServicer):
    """Forwards calls to the engine that a handle names, and starts to the least loaded engine.

    Args:
        pool: the engines.
        router: places requests.
        calls: knows whether the gateway is stopping.
        sessions: serves session streams.
        owed: takes releases for engines that are lost.
        access: the limits of owners.
    """

    def __init__(
        self,
        pool: EnginePool,
        router: Router,
        calls: LiveCalls,
        sessions: Sessions,
        owed: OwedReleases,
        access: Access,
    ) -> None:
        self._access = access
        self._sessions = sessions
        self._owed = owed
        self._pool = pool
        self._router = router
        self._keys = Keys(pool)
        self._calls = calls

    async def StartRequest(self, request: wire.StartRequestRequest, context: Context) -> Any:
        """Place a request; send a retry to the engine that already knows its key, if one does.

        If none does, another gateway may be starting it right now: then both choose the engine by the key.
        """
        self._calls.refuse_if_draining()
        if request.validate_only:
            return await self._validate(request, Forward(context))
        forward, prompt = Forward(context, asking=PROMPT_KEYS), pieces(request)

        async def begin(engine: Engine) -> Any:
            with self._access.starting(engine.name) as limits:
                answer = await forward.ask(engine, engine.requests.StartRequest, request, START_SECONDS, limits)
            self._router.learn(prompt, answer.prompt_keys)
            answer.ClearField("prompt_keys")
            return answer

        with forward.starting(request):
            return await self._place(request, forward, begin, prompt)

    async def _validate(self, request: Any, forward: Forward) -> Any:
        """Have an engine that could start a request validate it."""

        async def ask(engine: Engine) -> Any:
            return await forward.ask(engine, engine.requests.StartRequest, request, START_SECONDS)

        names, adapter = names_of(request.config), request.config.lora_name
        return await self._router.place(request.model_name, ask, processors=names, adapter=adapter, counted=False)

    async def _place(self, request: Any, forward: Forward, begin: Begin, prompt: Any) -> Any:
        """Start a request at the engine that knows its key, else at one that the router chooses."""
        async with self._keys.turn(request) as may_be_known:
            holder = await self._keys.holder(forward, request) if may_be_known else None
            if holder is None:
                key = f"{request.request_id}/{request.handover}" if may_be_known else ""
                names = names_of(request.config)
                return await self._router.place(request.model_name, begin, key, names, prompt, request.config.lora_name)
            with holder.load.placing():
                return await begin(holder)

    async def Generate(self, request: wire.GenerateRequest, context: Context) -> None:
        """Place a request and forward its stream. When the client leaves, the engine's call is cancelled."""
        self._calls.refuse_if_draining()
        forward = Forward(context)

        async def begin(engine: Engine) -> tuple[AsyncGenerator[Any, None], Any]:
            with self._access.starting(engine.name) as limits:
                stream = forward.stream(engine, engine.requests.Generate, request, limits)
                return stream, await anext(stream, None)

        processors = names_of(request.config)
        prompt = pieces(request)
        with forward.starting(request):
            stream, first = await self._router.place(
                request.model_name, begin, processors=processors, prompt=prompt, adapter=request.config.lora_name
            )
        async with aclosing(stream):
            await self._pass_on(first, stream, context)

    async def Embed(self, request: wire.EmbedRequest, context: Context) -> Any:
        """Place the prompts on one engine, and forward its answer."""
        self._calls.refuse_if_draining()
        forward = Forward(context)

        async def begin(engine: Engine) -> Any:
            with self._access.starting(engine.name) as limits:
                return await forward.ask(engine, engine.requests.Embed, request, more=limits)

        return await self._router.place(request.model_name, begin, adapter=request.lora_name)

    async def _pass_on(self, first: Any, stream: AsyncIterator[Any], context: Context) -> None:
        """Forward a Generate stream. Failures after the first token carry no RetryInfo: a retry would repeat tokens."""
        tokens = 0
        try:
            if first is not None:
                await context.write(first)
            async for message in stream:
                await context.write(message)
                tokens += len(message.elements.token_ids)
        except CallError as error:
            raise status.after_tokens(error, tokens) from error
        except asyncio.CancelledError:
            if not self._calls.was_cut():
                raise
            raise status.after_tokens(status.draining(), tokens) from None

    async def GeneratedElements(self, request: wire.GeneratedElementsRequest, context: Context) -> None:
        """Forward the stream. A slow reader holds the engine back (flow control), so the gateway buffers nothing."""
        engine = self._router.of_handle(request.handle)
        stream = Forward(context).stream(engine, engine.requests.GeneratedElements, request)
        async with aclosing(stream):
            async for message in stream:
                await context.write(message)

    async def Session(self, requests: AsyncIterator[Any], context: Context) -> None:
        """Serve a client's session, fed by one stream from each engine."""
        await self._sessions.serve(requests, context)

    async def StopRequest(self, request: wire.StopRequestRequest, context: Context) -> Any:
        """Forward the call to the handle's engine."""
        return await self._to_holder("StopRequest", request, context)

    async def ReleaseRequest(self, request: wire.ReleaseRequestRequest, context: Context) -> Any:
        """Forward the call to the handle's engine, which answers OK even for a handle that it lost.

        The answer is OK too for a text that is not a handle, and for an engine that is not in the list (any more). An
        engine that counts as lost gets it when it answers again; one that left the list has the lease of the request.
        """
        if not self._router.knows(request.handle):
            return wire.ReleaseRequestResponse()
        engine, forward = self._router.of_handle(request.handle), Forward(context)
        try:
            return await forward.ask(engine, engine.requests.ReleaseRequest, request)
        except CallError as error:
            known = self._pool.polls(engine)
            if error.reason != "ENGINE_UNREACHABLE" or (known and not engine.lost):
                raise
            if known:
                self._owed.add(engine, request, forward.metadata)
            return wire.ReleaseRequestResponse()

    async def SyncRequest(self, request: wire.SyncRequestRequest, context: Context) -> Any:
        """Wait at the handle's engine, or at all engines that have the model."""
        target = request.WhichOneof("target")
        if target is None:
            raise status.invalid_field("target", "is not set; give one of handle, model_name")
        if target == "handle":
            return await self._to_holder("SyncRequest", request, context)
        return await self._sync_model(request, Forward(context))

    async def GetRequest(self, request: wire.GetRequestRequest, context: Context) -> Any:
        """Ask the handle's engine, or, for a request_id, the engine with its highest hand-over."""
        key = request.WhichOneof("key")
        if key is None:
            raise status.invalid_field("key", "is not set; give one of handle, request_id")
        forward = Forward(context)
        if key == "handle":
            engine = self._router.of_handle(request.handle)
        else:
            engine = await self._keys.latest_holder(forward, request.request_id)
        return await forward.ask(engine, engine.requests.GetRequest, request)

    async def ListRequests(self, request: wire.ListRequestsRequest, context: Context) -> Any:
        """Merge the lists of all engines that can be reached, and name the others."""
        forward = Forward(context)

        async def ask(engine: Engine, page: wire.ListRequestsRequest) -> Any:
            return await forward.ask(engine, engine.requests.ListRequests, page)

        return await merged_page(self._pool.engines, request, ask, callers.current().may_see)

    async def _to_holder(self, method: str, request: Any, context: Context) -> Any:
        engine = self._router.of_handle(request.handle)
        return await Forward(context).ask(engine, getattr(engine.requests, method), request)

    async def _sync_model(self, request: wire.SyncRequestRequest, forward: Forward) -> wire.SyncRequestResponse:
        """Wait at all engines that may have the model; an unreachable one fails the call, as requests may run there."""
        await self._pool.settle()

        async def sync(engine: Engine) -> Any:
            try:
                return await forward.ask(engine, engine.requests.SyncRequest, request)
            except CallError as error:
                if error.reason != "UNKNOWN_MODEL":
                    raise
                return None

        having = [engine for engine in self._pool.engines if engine.view.may_have(request.model_name)]
        answers = [answer for answer in await together([sync(engine) for engine in having]) if answer is not None]
        if not answers:
            raise unknown_model(request.model_name)
        return wire.SyncRequestResponse(requests=[state for answer in answers for state in answer.requests])
