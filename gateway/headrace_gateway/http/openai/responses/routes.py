"""`/v1/responses`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from http import HTTPStatus
from itertools import chain
from typing import Any, Literal

import msgspec
from headrace.errors import HeadraceError
from headrace.fields import Lease
from headrace.types import RequestInfo

from headrace_gateway.http.accepted import headers_of
from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.bodies import struct_of, without_effect
from headrace_gateway.http.exchange import Exchange, Passing
from headrace_gateway.http.failures import Failure, failure_of, invalid
from headrace_gateway.http.generation import Generations, Text
from headrace_gateway.http.openai.responses.answer import Response, request_id_of, response_of, status_of
from headrace_gateway.http.openai.responses.events import Event, Known, Whole
from headrace_gateway.http.openai.responses.items import message_of
from headrace_gateway.http.openai.responses.outline import OPENED, Outline
from headrace_gateway.http.openai.responses.request import HARMLESS, NAMES, REFUSED, ResponseRequest
from headrace_gateway.http.openai.responses.sources import (
    Followed,
    Logged,
    QueueReading,
    Source,
    ended,
    parting_of,
    text_of,
)
from headrace_gateway.http.openai.responses.store import KEEP_SECONDS, Store

_LEASE: Lease = {"running": 0, "ended": KEEP_SECONDS}
"""A stored response runs and is kept whether or not a gateway reads it."""


class Deleted(msgspec.Struct):
    """A response was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class Responses:
    """Creates responses, and describes stored ones.

    Args:
        generations: starts requests.
    """

    def __init__(self, generations: Generations) -> None:
        self._generations = generations
        self._store = Store(generations.release, generations.hold)
        generations.on_close.append(self._store.close)

    async def create(self, exchange: Exchange) -> None:
        """Create one."""
        body = await exchange.body()
        request = struct_of(ResponseRequest, without_effect(body, HARMLESS, REFUSED))
        prompt, config = request.prompt(self.before(request.previous_response_id)), request.config()
        async with exchange.attended():
            if request.stored:
                await self._stored(exchange, request, prompt, config, len(msgspec.json.encode(body)))
                return
            async with self._generations.started(request.model, prompt, config, request.names()) as queue:
                passing = _Passing(queue, _begun(request, queue.request), request.wanted_tools())
                await _answer(exchange, request.stream, passing)

    async def retrieve(self, exchange: Exchange) -> None:
        """Answer with one that is stored, or stream what of it comes after an event."""
        name, query = exchange.request.path_params["name"], exchange.request.query_params
        stream, after = _flag(query.get("stream")), _number(query.get("starting_after"))
        async with exchange.attended():
            source, running = await self._find(name)
            if stream:
                await _stream(exchange, source, after)
                return
            if running:
                response = source.response
            else:
                response = source.ended() if isinstance(source, Followed) else await _whole(source)
            await exchange.answer(response, headers=headers_of([(source.accepted, NAMES)]))

    async def cancel(self, exchange: Exchange) -> None:
        """End one, and answer with what there is of it."""
        async with exchange.attended():
            source, _ = await self._find(exchange.request.path_params["name"])
            try:
                await self._generations.client.stop_request(source.accepted.handle)
            except HeadraceError as error:
                raise failure_of(error, NAMES) from None
            await exchange.answer(await _whole(source), headers=headers_of([(source.accepted, NAMES)]))

    async def delete(self, exchange: Exchange) -> None:
        """Forget one."""
        name = exchange.request.path_params["name"]
        async with exchange.attended():
            source, _ = await self._find(name)
            if self._store.find(name) is None:
                self._generations.release(source.accepted.handle)
            self._store.drop(name)
            await exchange.answer(Deleted(name))

    async def _stored(
        self, exchange: Exchange, request: ResponseRequest, prompt: Any, config: dict[str, Any], size: int
    ) -> None:
        self._store.reserve(exchange.caller, size)
        try:
            _, queue = await self._generations.start(request.model, prompt, config, lease=_LEASE)
        except BaseException as error:
            self._store.give_back(exchange.caller, size)
            if isinstance(error, HeadraceError):
                raise failure_of(error, request.names()) from None
            raise
        conversation = prompt["messages"][0 if request.instructions is None else 1 :]
        followed = Followed(queue, _begun(request, queue.request), conversation, request.wanted_tools())
        self._store.add(followed, exchange.caller, size)
        try:
            parting_of(followed)  # It refuses tools that it cannot part.
        except Failure:
            self._store.drop(followed.response.id)
            raise
        if request.background and not request.stream:
            await exchange.answer(followed.response, headers=headers_of([(queue.request, NAMES)]))
            return
        try:
            await _answer(exchange, request.stream, followed)
        except BaseException:
            if not request.background:
                self._store.drop(followed.response.id)  # Its caller has left, or it has failed.
            raise

    def before(self, response_id: str | None) -> list[dict[str, Any]]:
        """Return the conversation that a stored response ends; None: none. Raises Failure: it is not stored here."""
        if response_id is None:
            return []
        found = self._store.find(response_id)
        if found is None:
            text = f'= "{response_id[:64]}" is not stored in this gateway: send the whole conversation as input'
            field = "previous_response_id"
            raise Failure(HTTPStatus.NOT_FOUND, f"{field} {text}", "response_not_found", field)
        if not found.over or not (output := found.ended().output):
            raise invalid("previous_response_id", "names a response that has not ended well")
        return [*found.messages, message_of(output)]

    async def _find(self, name: str) -> tuple[Source, bool]:
        """Return a stored response, and whether it runs.

        Raises:
            Failure: 404, there is none.
        """
        followed = self._store.find(name)
        if followed is not None:
            return followed, not followed.over
        try:
            info = await self._generations.client.get_request(request_id=request_id_of(name)[:128] or "-")
        except HeadraceError as error:
            failure = failure_of(error, NAMES)
            if failure.code is HTTPStatus.NOT_FOUND:
                text = f'no response "{name[:64]}" is stored'
                failure = Failure(HTTPStatus.NOT_FOUND, text, "response_not_found", "response_id")
            raise failure from None
        response = response_of(info.request, _arrival(info), store=True)
        return Logged(self._generations.client, info, response), not all(one.status.terminal for one in info.sequences)


class _Passing:
    """A response that is not stored. A `Source` that is read once."""

    def __init__(self, queue: Any, response: Response, tools: Tools) -> None:
        self._queue, self.response, self.accepted, self.said = queue, response, queue.request, Text()
        self.tools = tools

    async def reading(self) -> Passing[str]:
        """Begin to read it."""
        return QueueReading(self._queue, self.said)


async def _answer(exchange: Exchange, stream: bool, source: Source) -> None:
    if stream:
        await _stream(exchange, source)
    else:
        await exchange.answer(await _whole(source), headers=headers_of([(source.accepted, NAMES)]))


async def _whole(source: Source) -> Response:
    """Return a response once it has ended."""
    return ended(source, await text_of(source))


async def _stream(exchange: Exchange, source: Source, after: int = -1) -> None:
    """Send the events of a response after one. The last ones have the whole text, also what came before."""
    known, parting, outline = Known(after), parting_of(source), Outline(source.accepted.request_id)

    def encoded(events: Iterable[Event]) -> bytes:
        return b"".join([known.rest(event) for event in events])

    def of_piece(piece: str) -> bytes:
        return encoded(outline.feed(parting.feed(piece)))

    await exchange.begin_events(headers_of([(source.accepted, NAMES)]))
    begun = (Whole("response.created", 0, source.response), Whole("response.in_progress", OPENED, source.response))
    await exchange.send(encoded(begun))
    await exchange.relay(await source.reading(), of_piece)
    complete = status_of(source.said) == "completed"
    last = encoded(chain(outline.feed(parting.end()), outline.end(complete=complete)))
    response = source.response.ended(source.said, outline.items, source.accepted.prompt_token_count)
    kind: Any = f"response.{response.status}"
    await exchange.send(last + encoded([Whole(kind, outline.number + 1, response)]))
    await exchange.end_events()


def _begun(request: ResponseRequest, accepted: Any) -> Response:
    return response_of(
        accepted,
        time.time(),
        background=request.background,
        store=request.stored,
        instructions=request.instructions,
        metadata=request.metadata or {},
        previous_response_id=request.previous_response_id,
        tools=msgspec.to_builtins(request.tools or []),
        tool_choice=msgspec.to_builtins(request.tool_choice or "auto"),
        parallel_tool_calls=request.parallel_tool_calls is not False,
    )


def _arrival(info: RequestInfo) -> float:
    times = [one.stat["arrival_time"] for one in info.sequences]
    return (times[0] or 0.0) / 1000 if times else 0.0


def _flag(text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise invalid("stream", "is neither true nor false")
    return text == "true"


def _number(text: str | None) -> int:
    if text is None:
        return -1
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise invalid("starting_after", "is no number of an event")
    return int(text)
