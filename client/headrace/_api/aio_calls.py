"""The methods of the asynchronous client: those of `ModelCalls` and `RequestCalls`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.wire.transport import client_closed

from headrace._api.aio_connection import AsyncConnection
from headrace._api.aio_handing_over import async_handover_of
from headrace._api.aio_open_queue import open_async_queue
from headrace._api.aio_text_stream import AsyncTextStream
from headrace._api.aio_verbs import answering, awaited, awaited_as
from headrace._api.making_calls import MakingCalls
from headrace._api.model_calls import ModelCalls
from headrace._api.release import RELEASE_TIMEOUT, SILENT_AFTER
from headrace._api.request_calls import RequestCalls
from headrace._api.server_calls import ServerCalls
from headrace._api.start_calls import StartCalls
from headrace._base.aio_waiting import being_cancelled
from headrace._base.retry import ONCE
from headrace._streaming.aio_queue import AsyncResultQueue
from headrace._transport.aio_iterator import AsyncMessageIterator
from headrace._values import calls
from headrace._values.calls import REQUESTS
from headrace._values.wire_errors import error_from_status
from headrace.errors import DeadlineError, HeadraceError, UnavailableError
from headrace.model_types import EngineStat, ModelInfo, SerializeStep
from headrace.types import RequestList

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class AsyncVerbs:
    """The asynchronous client's part of every method: making a call and awaiting its response."""

    _connection: AsyncConnection

    async def _call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        return read(await self._connection.call(method, request, answer, timeout=timeout, **about))

    # It returns the coroutine of `_call`.
    _quick_call = MakingCalls._quick_call

    def _watch(self, method: str, request: Message, read: Callable[[Any], Result]) -> AsyncMessageIterator[Result]:
        return AsyncMessageIterator(self._connection.stream(method, request), read, self._connection.home)


class AsyncModelCalls(AsyncVerbs):
    """Methods to install, start and watch models, and to get information and statistics of servers.

    They are those of `ModelCalls`, awaited. `watch_model`, `serialize_model` and `watch_engine_stats` are not awaited:
    iterate over their results with `async for`.
    """

    _change = ModelCalls._change

    install_model = awaited(ModelCalls.install_model)
    start_model = awaited(ModelCalls.start_model)
    stop_model = awaited(ModelCalls.stop_model)
    release_model = awaited(ModelCalls.release_model)
    load_adapter = awaited(ModelCalls.load_adapter)
    unload_adapter = awaited(ModelCalls.unload_adapter)
    list_adapters = awaited(ModelCalls.list_adapters)
    get_model = awaited(ModelCalls.get_model)
    list_models = awaited(ModelCalls.list_models)
    watch_model = answering(ModelCalls.watch_model, AsyncMessageIterator[ModelInfo])
    inspect_model = awaited(ModelCalls.inspect_model)
    serialize_model = answering(ModelCalls.serialize_model, AsyncMessageIterator[SerializeStep])
    free_serialized_model = awaited(ModelCalls.free_serialized_model)
    tokenize = awaited(ServerCalls.tokenize)
    detokenize = awaited(ServerCalls.detokenize)
    engine_stats = awaited(ServerCalls.engine_stats)
    watch_engine_stats = answering(ServerCalls.watch_engine_stats, AsyncMessageIterator[list[EngineStat]])
    server_info = awaited(ServerCalls.server_info)


class AsyncRequestCalls(AsyncModelCalls):
    """Methods to start, follow, stop and release requests.

    They are those of `RequestCalls`, awaited. `generate` is not awaited: iterating over its result with `async for`
    starts the request.

    Cancelling a call does not undo what the server has begun, with one exception: if `start_request` is cancelled and
    the request was started anyway, it is released, unless the caller chose its request_id and so can find it again.
    Cancelling a step of `generate` releases its request before the cancellation is raised; in the first step, which
    starts it, soon after.
    """

    validate_request = awaited(StartCalls.validate_request)
    start_request = awaited_as(StartCalls.start_request, tuple[str, AsyncResultQueue])
    open_queue = awaited_as(StartCalls.open_queue, AsyncResultQueue)
    embed = awaited(RequestCalls.embed)
    generate = answering(StartCalls.generate, AsyncTextStream)
    stop_request = awaited(RequestCalls.stop_request)
    release_request = awaited(RequestCalls.release_request)
    sync_request = awaited(RequestCalls.sync_request)
    get_request = awaited(RequestCalls.get_request)

    async def list_requests(
        self, model: str = "", *, running_only: bool = False, timeout: float | None = None
    ) -> RequestList:
        """Return this owner's unreleased requests, newest first; as `RequestCalls.list_requests`."""
        request = calls.list_requests(model, running_only=running_only)
        found = RequestList()
        while True:
            page, request.page_token = await self._page(request, timeout)
            found.extend_by(page)
            if not request.page_token:
                return found

    _open = staticmethod(open_async_queue)
    _handover_of = staticmethod(async_handover_of)
    _started = StartCalls._started
    _page = awaited(RequestCalls._page)
    _listed = RequestCalls._listed
    _observed = RequestCalls._observed
    _known = RequestCalls._known
    _start_now = awaited_as(StartCalls._start, tuple[str, AsyncResultQueue])

    def _text(self, request: wire.StartRequestRequest, timeout: float | None, *, generated_id: bool) -> AsyncTextStream:
        calls.check_single(request)
        start = partial(self._start, request, timeout, generated_id=generated_id, text=True)
        return AsyncTextStream(start, self._release_leaving, self._connection)

    async def _start(
        self, request: wire.StartRequestRequest, timeout: float | None, *, generated_id: bool, text: bool = False
    ) -> tuple[str, AsyncResultQueue]:
        """Start a request; if cancelled, release it in the background, as the caller never learns its handle.

        A task of the connection owns the call, so that cancelling the caller does not lose the response.

        Args:
            request: the request.
            timeout: seconds; None: the client's timeout.
            generated_id: its id was generated here, so the caller cannot find it again.
            text: it belongs to a text stream, which releases it whoever chose the id.
        """
        starting = self._connection.starts.spawn(
            self._start_now(request, timeout, generated_id=generated_id), "headrace-start"
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled() and not being_cancelled():
                # The connection was closed and cancelled the task; this caller was not cancelled.
                raise error_from_status(client_closed()) from None
            if not (generated_id or text) or starting.cancelling() or self._connection.ending:
                starting.cancel()
            else:
                self._connection.cleanups.spawn(self._undo(starting), "headrace-undo")
            raise

    async def _undo(self, starting: asyncio.Task[tuple[str, AsyncResultQueue]]) -> None:
        """Release a request whose caller was cancelled before it got the handle."""
        done, _ = await asyncio.wait([starting], timeout=RELEASE_TIMEOUT)
        if not done:
            starting.cancel()
        elif not starting.cancelled() and starting.exception() is None:
            try:
                await self._release_leaving(starting.result()[0])
            except HeadraceError:
                return

    async def _release_leaving(self, handle: str) -> None:
        """Release a request that nobody reads any more; if no answer comes, once more over a new connection."""
        try:
            await self._release_once(handle, SILENT_AFTER)
        except DeadlineError:
            self._connection.reconnect()
            await self._release_once(handle, RELEASE_TIMEOUT - SILENT_AFTER)

    async def _release_once(self, handle: str, limit: float) -> None:
        requests = self._connection.requests
        if handle not in requests.unreleased():
            return
        drained = requests.drained(handle)
        try:
            await self._try_release(handle, limit)
        except UnavailableError:
            if not drained:  # Else its drained engine is gone, and so is it.
                raise
            requests.released(handle)

    async def _try_release(self, handle: str, limit: float) -> None:
        """Release a request with one attempt."""
        request = wire.ReleaseRequestRequest(handle=handle)

        def released(answer: wire.ReleaseRequestResponse) -> None:
            self._connection.requests.released(handle)

        method = f"{REQUESTS}/ReleaseRequest"
        await self._call(method, request, wire.ReleaseRequestResponse, released, limit, handle=handle, policy=ONCE)
