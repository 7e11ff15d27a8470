"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from headrace import AsyncResultQueue
from headrace.errors import HeadraceError
from headrace.types import FinishReason, GeneratedElements
from headrace_proto.pure.answers.json_text import object_in
from headrace_proto.pure.answers.pieces import Thought

from headrace_gateway.http.accepted import headers_of
from headrace_gateway.http.answers.parting import CallPart, Part, Parting
from headrace_gateway.http.anthropic.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    End,
    Event,
    InputDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from headrace_gateway.http.anthropic.request import HARMLESS, REFUSED, CountRequest, MessageRequest
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import failure_of
from headrace_gateway.http.generation import Generations, Text, read_all
from headrace_gateway.http.templates import event_of

_CUT = frozenset({FinishReason.MAX_LENGTH, FinishReason.DEADLINE, FinishReason.RESPONSE_FORMAT_LIMIT})


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
        started = self._generations.started(request.model, request.prompt(), request.config(), request.names())
        async with exchange.attended(), started as queue:
            answering = _Answering(exchange, request, queue)
            await (answering.stream() if request.stream else answering.whole())

    async def count(self, exchange: Exchange) -> None:
        """Answer with the tokens of a conversation."""
        request = await exchange.read(CountRequest, HARMLESS, REFUSED)
        request.response_format()  # It counts for nothing, and may be wrong.
        async with exchange.attended():
            try:
                model = await self._generations.model_of(request.model)
                found = await self._generations.client.tokenize(model, **request.prompt())
            except HeadraceError as error:
                raise failure_of(error, request.names()) from None
            await exchange.answer(TokenCount(len(found.ids)))


class _Answering:
    """One answer in progress."""

    def __init__(self, exchange: Exchange, request: MessageRequest, queue: AsyncResultQueue) -> None:
        self._exchange, self._request, self._queue = exchange, request, queue
        self._headers = headers_of([(queue.request, request.names())], "request-id")
        self._parting = Parting(queue.request, request.wanted_tools(), request.thinks, "toolu_")
        self._index = -1  # Of the block in progress.
        self._block: Part | None = None  # One like it.

    async def whole(self) -> None:
        """Answer once all is generated."""
        text = await read_all(self._queue)
        blocks = [_block(part) for part in self._parting.whole(text.text)]
        end = self._end(text)
        message = self._message(blocks or [TextBlock("")], text)
        message.stop_reason, message.stop_sequence = end.stop_reason, end.stop_sequence
        await self._exchange.answer(message, headers=self._headers)

    async def stream(self) -> None:
        """Answer as text comes. What was cached is known with the first token, and so the first event comes then."""
        await self._exchange.begin_events(self._headers)
        text, begun = Text(), False

        def events(elements: GeneratedElements) -> bytes:
            nonlocal begun
            text.count(elements)
            first = b"" if begun else self._begin(text)
            begun = True
            return first + self._parts(self._parting.feed(elements.text))

        await self._exchange.relay(self._queue, events)
        text.ended(self._queue)
        last = b"" if begun else self._begin(text)
        last += self._parts(self._parting.end())
        if self._block is None:
            last += self._parts([""])
        last += _event(BlockStop(self._index))
        last += _event(MessageDelta(self._end(text), self._usage(text)))
        await self._exchange.send(last + _event(MessageStop()))
        await self._exchange.end_events()

    def _begin(self, text: Text) -> bytes:
        message = self._message([], text)
        message.usage.output_tokens = 0
        return _event(MessageStart(message))

    def _parts(self, parts: Sequence[Part]) -> bytes:
        """Return the events of what is new, each in a block of its kind."""
        found = b""
        for part in parts:
            if not _goes_on(self._block, part):
                if self._block is not None:
                    found += _event(BlockStop(self._index))
                self._index += 1
                found += _event(BlockStart(_empty(part), self._index))
                self._block = part
            if delta := _delta(part):
                found += _event(BlockDelta(delta, self._index))
        return found

    def _message(self, content: list[ContentBlock], text: Text) -> Message:
        return Message(f"msg_{self._queue.request_id}", self._request.model, content, None, None, self._usage(text))

    def _usage(self, text: Text) -> Usage:
        return Usage(self._queue.request.prompt_token_count - text.cached, text.cached, text.tokens)

    def _end(self, text: Text) -> End:
        """Return why the message ended."""
        if text.finish in _CUT:
            return End("max_tokens", None)
        if text.finish is FinishReason.STOP_WORD and text.stop is not None:
            return End("stop_sequence", text.stop.text)
        return End("tool_use" if self._parting.count else "end_turn", None)


def _event(event: Event) -> bytes:
    return event_of(event, event.type)


def _goes_on(block: Part | None, part: Part) -> bool:
    """Return whether a part belongs to the block in progress."""
    if isinstance(block, CallPart) and isinstance(part, CallPart):
        return block.index == part.index
    return block is not None and type(block) is type(part)


def _empty(part: Part) -> ContentBlock:
    if isinstance(part, CallPart):
        return ToolUseBlock(part.id or "", part.name or "", msgspec.Raw(b"{}"))
    return ThinkingBlock("") if isinstance(part, Thought) else TextBlock("")


def _delta(part: Part) -> TextDelta | ThinkingDelta | InputDelta | None:
    if isinstance(part, CallPart):
        return InputDelta(part.arguments) if part.arguments else None
    if isinstance(part, Thought):
        return ThinkingDelta(part.text)
    return TextDelta(part) if part else None


def _block(part: Part) -> ContentBlock:
    """Return a part as a block; a call whose arguments are no object, such as one that was cut off, as text."""
    if isinstance(part, Thought):
        return ThinkingBlock(part.text)
    if isinstance(part, str):
        return TextBlock(part)
    arguments = object_in(part.arguments)
    if arguments is None:
        return TextBlock(part.arguments)
    return ToolUseBlock(part.id or "", part.name or "", msgspec.Raw(arguments.encode()))
