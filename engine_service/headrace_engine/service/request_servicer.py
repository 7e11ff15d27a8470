"""RequestService: start requests and read their results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1.request_service_pb2_grpc import RequestServiceServicer
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse

from headrace_engine.engine.engine import Engine
from headrace_engine.errors import HeadraceError
from headrace_engine.result_types import ReadResult
from headrace_engine.service.convert.callers import wants_prompt_keys
from headrace_engine.service.convert.codec import read_seconds
from headrace_engine.service.convert.prompt import embed_requests, generate_request, start_request
from headrace_engine.service.convert.refusals import required
from headrace_engine.service.convert.results import (
    ACCEPTED,
    REQUEST,
    SEQUENCE,
    elements_response,
    elements_to_wire,
    generate_response,
    prompt_to_wire,
    request_states,
)
from headrace_engine.service.convert.sizes import by_size
from headrace_engine.service.failures import closing
from headrace_engine.service.session_servicer import serve_session


class RequestServicer(RequestServiceServicer):
    """Each method is one call of the engine; exceptions become statuses in `failures`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def StartRequest(self, request: wire.StartRequestRequest, context: Any) -> wire.StartRequestResponse:
        """Validate and accept a request; with `validate_only`, validate it alone."""
        if request.validate_only:
            await self._engine.validate_request(await by_size(self._engine.pools, start_request, request))
            return wire.StartRequestResponse()
        with self._engine.arriving(request.owner, request.request_id):
            accepted = await self._engine.start_request(await by_size(self._engine.pools, start_request, request))
        keys = self._engine.prompt_keys(accepted.handle, request.owner) if wants_prompt_keys() else []
        return wire.StartRequestResponse(request=ACCEPTED.to_wire(accepted), prompt_keys=b"".join(keys))

    async def StopRequest(self, request: wire.StopRequestRequest, context: Any) -> wire.StopRequestResponse:
        """End a request; its tokens stay readable."""
        sequences = await self._engine.stop_request(request.handle, request.owner)
        return wire.StopRequestResponse(sequences=map(SEQUENCE.to_wire, sequences))

    async def ReleaseRequest(self, request: wire.ReleaseRequestRequest, context: Any) -> wire.ReleaseRequestResponse:
        """End a request and free its logs."""
        await self._engine.release_request(request.handle, request.owner)
        return wire.ReleaseRequestResponse()

    async def SyncRequest(self, request: wire.SyncRequestRequest, context: Any) -> wire.SyncRequestResponse:
        """Wait until requests ended; gRPC cancels the wait at the call's deadline."""
        target = required(request, "target")
        views = await self._engine.sync_request(**{target: getattr(request, target)}, owner=request.owner)
        return wire.SyncRequestResponse(requests=request_states(views))

    async def GetRequest(self, request: wire.GetRequestRequest, context: Any) -> wire.GetRequestResponse:
        """Return the state of a request, with tokens if requested."""
        key = required(request, "key")
        view, elements = await self._engine.get_request(
            **{key: getattr(request, key)},
            owner=request.owner,
            wait=read_seconds(request.wait),
            index=request.index,
            from_position=_given(request, "from_position"),
            prompt_logprobs_from=_given(request, "prompt_logprobs_from"),
        )
        return wire.GetRequestResponse(
            request=REQUEST.to_wire(view),
            elements=None if elements is None else elements_to_wire(elements),
            prompt_logprobs=prompt_to_wire(view.prompt_logprobs),
        )

    async def ListRequests(self, request: wire.ListRequestsRequest, context: Any) -> wire.ListRequestsResponse:
        """Return the owner's requests, a page at a time."""
        views, next_page_token = self._engine.list_requests(
            request.owner,
            model_name=request.model_name,
            running_only=request.running_only,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return wire.ListRequestsResponse(requests=request_states(views), next_page_token=next_page_token)

    async def GeneratedElements(
        self, request: wire.GeneratedElementsRequest, context: Any
    ) -> AsyncIterator[wire.GeneratedElementsResponse]:
        """Send the tokens of one sequence from a position, then its end. Cancelling the call does not stop it."""
        found = self._engine.read(request.handle, request.index, request.from_position, request.owner)
        async with closing(found) as results:
            async for result in results:
                yield elements_response(request, result)

    def Session(self, request_iterator: AsyncIterator[SessionRequest], context: Any) -> AsyncIterator[SessionResponse]:
        """Serve a session: one stream with all results that a client reads."""
        return serve_session(self._engine, request_iterator)

    async def Generate(self, request: wire.GenerateRequest, context: Any) -> AsyncIterator[wire.GenerateResponse]:
        """Start, read and release a request in one call. Cancelling the call stops the request."""
        start = await by_size(self._engine.pools, generate_request, request)
        tokens = 0
        try:
            async with closing(self._engine.generate(start)) as items:
                async for accepted, index, result in items:
                    yield generate_response(accepted, index, result)
                    tokens += _length(result)
        except HeadraceError as error:
            if tokens and error.retry_after is not None:
                error.message += f". This call broke off after {tokens} tokens: a new call starts from the beginning"
                error.retry_after = None
            raise

    async def Embed(self, request: wire.EmbedRequest, context: Any) -> wire.EmbedResponse:
        """Return the embeddings of prompts. Cancelling the call stops them."""
        starts = await by_size(self._engine.pools, embed_requests, request)
        normalize = request.normalize if request.HasField("normalize") else True
        found = await self._engine.embed(starts, normalize=normalize)
        return wire.EmbedResponse(
            embeddings=[
                wire.Embedding(values=each.values, prompt_token_count=each.prompt_token_count) for each in found
            ]
        )


def _length(result: ReadResult | None) -> int:
    return len(result.elements.token_ids) if result is not None and result.elements is not None else 0


def _given(request: wire.GetRequestRequest, name: str) -> int | None:
    return getattr(request, name) if request.HasField(name) else None
