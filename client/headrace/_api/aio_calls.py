"""The asynchronous client's calls: those of `ModelCalls` and `RequestCalls`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message
from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.wire.transport import client_closed

from headrace._api.aio_connection import AsyncConnection
from headrace._api.aio_open_queue import open_async_queue
from headrace._api.aio_text_stream import AsyncTextStream
from headrace._api.aio_verbs import answering, awaited, awaited_as
from headrace._api.giving_back import GIVE_BACK_TIMEOUT
from headrace._api.model_calls import ModelCalls
from headrace._api.request_calls import RequestCalls
from headrace._base.aio_waiting import being_cancelled
from headrace._base.retry import ONCE
from headrace._streaming.aio_queue import AsyncResultQueue
from headrace._transport.aio_iterator import AsyncMessageIterator
from headrace._values import calls
from headrace._values.calls import REQUESTS
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError, UnavailableError
from headrace.model_types import EngineStat, ModelInfo
from headrace.types import RequestInfo

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class AsyncVerbs:
    """Where the verbs of an asynchronous client wait."""

    _connection: AsyncConnection

    async def _ask(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        return read(await self._connection.call(method, request, answer, timeout=timeout, **about))

    # It answers what `_ask` does.
    _quick = ModelCalls._quick

    def _watch(self, method: str, request: Message, read: Callable[[Any], Result]) -> AsyncMessageIterator[Result]:
        return AsyncMessageIterator(self._connection.stream(method, request), read, self._connection.home)


class AsyncModelCalls(AsyncVerbs):
    """Installing, starting and watching models; facts and figures of servers: `ModelCalls`, awaited.

    `watch_model` and `watch_engine_stats` are plain calls, whose answers are iterated over with `async for`.
    """

    install_model = awaited(ModelCalls.install_model)
    start_model = awaited(ModelCalls.start_model)
    stop_model = awaited(ModelCalls.stop_model)
    release_model = awaited(ModelCalls.release_model)
    get_model = awaited(ModelCalls.get_model)
    list_models = awaited(ModelCalls.list_models)
    watch_model = answering(ModelCalls.watch_model, AsyncMessageIterator[ModelInfo])
    inspect_model = awaited(ModelCalls.inspect_model)
    tokenize = awaited(ModelCalls.tokenize)
    detokenize = awaited(ModelCalls.detokenize)
    engine_stats = awaited(ModelCalls.engine_stats)
    watch_engine_stats = answering(ModelCalls.watch_engine_stats, AsyncMessageIterator[list[EngineStat]])
    server_info = awaited(ModelCalls.server_info)


class AsyncRequestCalls(AsyncModelCalls):
    """Starting, following and ending requests: `RequestCalls`, awaited.

    `generate` is a plain call, whose text is iterated over with `async for`; that is what starts the request.

    Cancelling a call ends it; what it asked for goes on where it had begun. Cancelling `start_request` leaves nothing
    behind: a request that was started all the same is released, unless the caller chose its request_id and so can find
    it again. Cancelling a step of `generate` releases its request before the cancellation goes on; cancelling the first
    step, which starts it, soon after: nobody waits for the start of what nobody wants any more.
    """

    start_request = awaited_as(RequestCalls.start_request, tuple[str, AsyncResultQueue])
    open_queue = awaited_as(RequestCalls.open_queue, AsyncResultQueue)
    generate = answering(RequestCalls.generate, AsyncTextStream)
    stop_request = awaited(RequestCalls.stop_request)
    release_request = awaited(RequestCalls.release_request)
    sync_request = awaited(RequestCalls.sync_request)
    get_request = awaited(RequestCalls.get_request)

    async def list_requests(
        self, model: str = "", *, running_only: bool = False, timeout: float | None = None
    ) -> list[RequestInfo]:
        """One's requests that are not released, newest first; as `RequestCalls.list_requests`."""
        request = calls.list_requests(model, running_only=running_only)
        found: list[RequestInfo] = []
        while True:
            page, request.page_token = await self._page(request, timeout)
            found += page
            if not request.page_token:
                return found

    _page = awaited(RequestCalls._page)
    _observed = RequestCalls._observed
    _start_now = awaited_as(RequestCalls._start, tuple[str, AsyncResultQueue])

    def _text(self, request: wire.StartRequestRequest, timeout: float | None, *, drawn: bool) -> AsyncTextStream:
        calls.check_single(request)
        start = partial(self._start, request, timeout, drawn=drawn, text=True)
        return AsyncTextStream(start, self._release_once, self._connection)

    def _started(self, answer: wire.StartRequestResponse) -> tuple[str, AsyncResultQueue]:
        accepted = answer.request
        self._connection.requests.started(accepted.handle)
        places = calls.indices(accepted)
        queues = [open_async_queue(self._connection, accepted, index, first=True) for index in places]
        if len(queues) > 1:
            AsyncResultQueue.join(queues)
        return accepted.handle, queues[0]

    def _queue(
        self, accepted: request_pb2.AcceptedRequest, index: int, position: int, info: request_pb2.SequenceInfo | None
    ) -> AsyncResultQueue:
        return open_async_queue(self._connection, accepted, index, position, info, first=False)

    async def _start(
        self, request: wire.StartRequestRequest, timeout: float | None, *, drawn: bool, text: bool = False
    ) -> tuple[str, AsyncResultQueue]:
        """Starts a request; whoever is cancelled meanwhile does not know whether there is one, so that is seen to.

        `text`: it ends with its text, whoever chose its id.
        """
        starting = self._connection.starts.spawn(self._start_now(request, timeout, drawn=drawn), "headrace-start")
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled() and not being_cancelled():
                # The end of the connection did that, and who waits here must hear of it.
                raise error_from_status(client_closed()) from None
            if not (drawn or text) or starting.cancelling() or self._connection.ending:
                starting.cancel()
            else:
                self._connection.cleanups.spawn(self._undo(starting), "headrace-undo")
            raise

    async def _undo(self, starting: asyncio.Task[tuple[str, AsyncResultQueue]]) -> None:
        """Releases what nobody will ever know the handle of."""
        done, _ = await asyncio.wait([starting], timeout=GIVE_BACK_TIMEOUT)
        if not done:
            starting.cancel()
        elif not starting.cancelled() and starting.exception() is None:
            try:
                await self._release_once(starting.result()[0])
            except HeadraceError:
                return

    async def _release_once(self, handle: str) -> None:
        requests = self._connection.requests
        if handle not in requests.unreleased():
            return
        drained = requests.drained(handle)
        try:
            await self._give_back(handle)
        except UnavailableError:
            if not drained:  # Otherwise its engine took it along.
                raise
            requests.released(handle)

    async def _give_back(self, handle: str) -> None:
        """Releases a request, without trying for long."""
        request = wire.ReleaseRequestRequest(handle=handle)

        def released(answer: wire.ReleaseRequestResponse) -> None:
            self._connection.requests.released(handle)

        method, limit = f"{REQUESTS}/ReleaseRequest", GIVE_BACK_TIMEOUT
        await self._ask(method, request, wire.ReleaseRequestResponse, released, limit, handle=handle, policy=ONCE)
