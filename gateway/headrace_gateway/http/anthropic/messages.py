"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Literal

import msgspec
from headrace import AsyncResultQueue
from headrace.errors import HeadraceError
from headrace.types import FinishReason

from headrace_gateway.http.anthropic.request import HARMLESS, NAMES, REFUSED, CountRequest, MessageRequest
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import failure_of
from headrace_gateway.http.generation import Generations, Text, read_all

_CUT = frozenset({FinishReason.MAX_LENGTH, FinishReason.DEADLINE, FinishReason.RESPONSE_FORMAT_LIMIT})

StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]


class TextBlock(msgspec.Struct):
    """What the model says."""

    text: str
    type: Literal["text"] = "text"


class Usage(msgspec.Struct):
    """Tokens of a request; those of the prompt without those that came from the prefix cache."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct):
    """The next message of a conversation."""

    id: str
    model: str
    content: list[TextBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageStart(msgspec.Struct):
    """The first event."""

    message: Message
    type: Literal["message_start"] = "message_start"


class BlockStart(msgspec.Struct):
    """The text begins."""

    content_block: TextBlock
    index: int = 0
    type: Literal["content_block_start"] = "content_block_start"


class TextDelta(msgspec.Struct):
    """New text."""

    text: str
    type: Literal["text_delta"] = "text_delta"


class BlockDelta(msgspec.Struct):
    """The text goes on."""

    delta: TextDelta
    index: int = 0
    type: Literal["content_block_delta"] = "content_block_delta"


class BlockStop(msgspec.Struct):
    """The text has ended."""

    index: int = 0
    type: Literal["content_block_stop"] = "content_block_stop"


class End(msgspec.Struct):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct):
    """How the message ended."""

    delta: End
    usage: Usage
    type: Literal["message_delta"] = "message_delta"


class MessageStop(msgspec.Struct):
    """The last event."""

    type: Literal["message_stop"] = "message_stop"


class TokenCount(msgspec.Struct):
    """Tokens of a conversation."""

    input_tokens: int


class Messages:
    """Answers conversations.

    Args:
        generations: starts requests.
    """

    def __init__(self, generations: Generations) -> None:
        self._generations = generations

    async def create(self, exchange: Exchange) -> None:
        """Answer one conversation."""
        request = await exchange.read(MessageRequest, HARMLESS, REFUSED)
        started = self._generations.started(request.model, request.prompt(), request.config(), NAMES)
        async with exchange.attended(), started as queue:
            answering = _Answering(exchange, request, queue)
            await (answering.stream() if request.stream else answering.whole())

    async def count(self, exchange: Exchange) -> None:
        """Answer with the tokens of a conversation."""
        request = await exchange.read(CountRequest, HARMLESS, REFUSED)
        async with exchange.attended():
            try:
                found = await self._generations.client.tokenize(request.model, **request.prompt())
            except HeadraceError as error:
                raise failure_of(error, NAMES) from None
            await exchange.answer(TokenCount(len(found.ids)))


class _Answering:
    """One answer in progress."""

    def __init__(self, exchange: Exchange, request: MessageRequest, queue: AsyncResultQueue) -> None:
        self._exchange, self._request, self._queue = exchange, request, queue
        self._headers = {"request-id": queue.request_id}

    async def whole(self) -> None:
        """Answer once all is generated."""
        text = await read_all(self._queue)
        end = _end(text)
        message = self._message([TextBlock(text.text)], text)
        message.stop_reason, message.stop_sequence = end.stop_reason, end.stop_sequence
        await self._exchange.answer(message, headers=self._headers)

    async def stream(self) -> None:
        """Answer as text comes. What was cached is known with the first token, and so the first event comes then."""
        await self._exchange.begin_events(self._headers)
        text, begun = Text(), False
        async for elements in self._queue:
            text.count(elements)
            if not begun:
                begun = True
                await self._begin(text)
            if elements.text:
                await self._event(BlockDelta(TextDelta(elements.text)))
        text.ended(self._queue)
        if not begun:
            await self._begin(text)
        await self._event(BlockStop())
        await self._event(MessageDelta(_end(text), self._usage(text)))
        await self._event(MessageStop())
        await self._exchange.end_events()

    async def _begin(self, text: Text) -> None:
        message = self._message([], text)
        message.usage.output_tokens = 0
        await self._event(MessageStart(message))
        await self._event(BlockStart(TextBlock("")))

    async def _event(
        self, event: MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
    ) -> None:
        await self._exchange.event(event, event.type)

    def _message(self, content: list[TextBlock], text: Text) -> Message:
        return Message(f"msg_{self._queue.request_id}", self._request.model, content, None, None, self._usage(text))

    def _usage(self, text: Text) -> Usage:
        return Usage(self._queue.request.prompt_token_count - text.cached, text.cached, text.tokens)


def _end(text: Text) -> End:
    """Return why a message ended."""
    if text.finish in _CUT:
        return End("max_tokens", None)
    if text.finish is FinishReason.STOP_WORD and text.stop is not None:
        return End("stop_sequence", text.stop.text)
    return End("end_turn", None)
