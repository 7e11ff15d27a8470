"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from headrace import AsyncResultQueue
from headrace.types import GeneratedElements
from headrace_proto.pure.answers.pieces import Thought

from headrace_gateway.http.accepted import headers_of
from headrace_gateway.http.answers.parting import CallPart, Part, Parting
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.generation import Generations, Text
from headrace_gateway.http.openai import fields
from headrace_gateway.http.openai.answering import concurrently, finish_of, relay, usage_of
from headrace_gateway.http.openai.chat_request import HARMLESS, REFUSED, ChatRequest
from headrace_gateway.http.openai.token_texts import ChatLogprobs, TokenTexts
from headrace_gateway.http.openai.tools import ToolCall
from headrace_gateway.http.templates import PLACE, Template, event_of


class Answer(msgspec.Struct):
    """What the model says, and the tools that it calls."""

    content: str | None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct):
    """One of `n` answers."""

    index: int
    message: Answer
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct):
    """The answers to a chat."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: fields.Usage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, omit_defaults=True):
    """What is new."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None


class ChunkChoice(msgspec.Struct):
    """What is new of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """A part of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: fields.Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class Chat:
    """Answers chats.

    Args:
        generations: starts requests.
    """

    def __init__(self, generations: Generations) -> None:
        self._generations = generations

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one chat."""
        request = await exchange.read(ChatRequest, HARMLESS, REFUSED)
        async with (
            exchange.attended(),
            self._generations.started(request.model, request.prompt(), request.config(), request.names()) as queue,
        ):
            texts = TokenTexts(self._generations.client, queue.request.model_name)
            answering = _Answering(exchange, request, queue, texts)
            await (answering.stream() if request.stream else answering.whole())


class _Answering:
    """One answer in progress."""

    def __init__(self, exchange: Exchange, request: ChatRequest, queue: AsyncResultQueue, texts: TokenTexts) -> None:
        self._exchange, self._request, self._queue, self._texts = exchange, request, queue, texts
        self._tools = request.wanted_tools()
        self._parting(0)  # It refuses tools that it cannot part.
        self._id = f"chatcmpl-{queue.request_id}"
        self._created = int(time.time())
        self._headers = headers_of([(queue.request, request.names())])
        self._usage = None if request.wants_usage else msgspec.UNSET

    async def whole(self) -> None:
        """Answer once all is generated."""
        logprobs: dict[int, ChatLogprobs] = {}

        async def read(index: int, queue: AsyncResultQueue) -> Text:
            found = Text()
            async for elements in queue:
                found.add(elements)
                if self._request.logprobs and elements.ids_from_generate:
                    await self._texts.learn(elements)
                    logprobs.setdefault(index, ChatLogprobs([])).content.extend(self._texts.chat(elements).content)
            found.ended(queue)
            return found

        texts = await concurrently(self._queue.choices, read)
        choices = [self._choice(index, text, logprobs.get(index)) for index, text in enumerate(texts)]
        usage = usage_of([self._queue], texts)
        answer = ChatCompletion(self._id, self._created, self._request.model, choices, usage)
        await self._exchange.answer(answer, headers=self._headers)

    def _choice(self, index: int, text: Text, logprobs: ChatLogprobs | None) -> Choice:
        parted = self._parting(index).whole(text.text)
        calls = [ToolCall.of(part) for part in parted if isinstance(part, CallPart)]
        said = "".join(part for part in parted if isinstance(part, str))
        thought = "".join(part.text for part in parted if isinstance(part, Thought))
        answer = Answer(said or None, calls) if calls else Answer(said)
        answer.reasoning_content = thought or msgspec.UNSET
        return Choice(index, answer, logprobs, _finish(text, called=bool(calls)))

    def _parting(self, sequence: int) -> Parting:
        return Parting(self._queue.request, self._tools, self._request.separate_reasoning, "call_", sequence)

    async def stream(self) -> None:
        """Answer as text comes."""
        await self._exchange.begin_events(self._headers)
        for index in range(len(self._queue.choices)):
            await self._exchange.event(self._chunk(ChunkChoice(index, Delta("assistant", ""))))
        texts = await concurrently(self._queue.choices, self._stream_one)
        if self._request.wants_usage:
            usage = usage_of([self._queue], texts)
            await self._exchange.event(Chunk(self._id, self._created, self._request.model, [], usage))
        await self._exchange.end_events(b"data: [DONE]\n\n")

    async def _stream_one(self, index: int, queue: AsyncResultQueue) -> Text:
        found, parting, parts = Text(), self._parting(index), _Parts(index, self._chunk)

        def events(elements: GeneratedElements) -> bytes:
            found.count(elements)
            logprobs = self._texts.chat(elements) if self._request.logprobs and elements.ids_from_generate else None
            return parts.events(parting.feed(elements.text), logprobs)

        await relay(self._exchange, queue, events, self._texts if self._request.logprobs else None)
        found.ended(queue)
        left = parts.events(parting.end())
        finish = self._chunk(ChunkChoice(index, Delta(), None, _finish(found, called=bool(parting.count))))
        await self._exchange.send(left + event_of(finish))
        return found

    def _chunk(self, choice: ChunkChoice) -> Chunk:
        return Chunk(self._id, self._created, self._request.model, [choice], self._usage)


class _Parts:
    """Writes the parts of one answer as events.

    Args:
        index: number of the answer.
        chunk: returns the chunk of what is new.
    """

    def __init__(self, index: int, chunk: Callable[[ChunkChoice], Chunk]) -> None:
        self._index, self._chunk = index, chunk
        self._plain = Template(chunk(ChunkChoice(index, Delta(content=PLACE))))

    def events(self, parts: Sequence[Part], logprobs: ChatLogprobs | None = None) -> bytes:
        """Return the events; log-probabilities with the first part, or alone where a call may be beginning."""
        found = b""
        for part in parts or ([""] if logprobs is not None else []):
            if logprobs is None and isinstance(part, str):
                found += self._plain.event(part)
            else:
                found += event_of(self._chunk(ChunkChoice(self._index, _delta(part), logprobs)))
            logprobs = None
        return found


def _finish(text: Text, *, called: bool) -> str:
    """Return why an answer ended: a call that is cut off is "length", as any text is."""
    finish = finish_of(text)
    return "tool_calls" if called and finish == "stop" else finish


def _delta(part: Part) -> Delta:
    if isinstance(part, CallPart):
        return Delta(tool_calls=[ToolCall.of(part)])
    return Delta(reasoning_content=part.text) if isinstance(part, Thought) else Delta(content=part)
