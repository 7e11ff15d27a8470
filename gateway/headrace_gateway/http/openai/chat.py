"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
from headrace import AsyncResultQueue

from headrace_gateway.http.bodies import struct_of, without_effect
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import invalid
from headrace_gateway.http.generation import Generations, Text
from headrace_gateway.http.openai import fields
from headrace_gateway.http.openai.answering import concurrently, finish_of, usage_of
from headrace_gateway.http.openai.messages import Message, messages_of
from headrace_gateway.http.openai.token_texts import ChatLogprobs, TokenTexts

_HARMLESS = fields.HARMLESS | {"tool_choice": ("none",), "modalities": (["text"],), "tools": ([],)}
_NO_TOOLS = ": calls of tools are not parsed"
_REFUSED = {
    "tools": _NO_TOOLS,
    "tool_choice": _NO_TOOLS,
    "parallel_tool_calls": _NO_TOOLS,
    "functions": _NO_TOOLS,
    "function_call": _NO_TOOLS,
    "audio": "",
    "modalities": "",
    "prediction": "",
    "web_search_options": "",
    "reasoning_effort": ": give a variable of the model's template in chat_template_kwargs",
    "verbosity": "",
}


class ChatRequest(fields.Sampling, forbid_unknown_fields=True, kw_only=True):
    """A chat to answer."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def prompt(self) -> dict[str, Any]:
        """Return the prompt, and how to render it."""
        return {
            "messages": messages_of(self.messages),
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "template_variables": self.chat_template_kwargs,
        }

    def config(self) -> dict[str, Any]:
        """Return the generation config. Raises Failure."""
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise invalid("max_tokens", "is set beside max_completion_tokens: give one of them")
        found = super().config()
        if self.max_completion_tokens is not None:
            found["max_new_tokens"] = self.max_completion_tokens
        return found | {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs}

    def names(self) -> dict[str, str]:
        """Return what this request calls fields of the wire contract."""
        if self.max_completion_tokens is None:
            return fields.NAMES
        return fields.NAMES | {"max_new_tokens": "max_completion_tokens"}


class Answer(msgspec.Struct):
    """What the model says."""

    content: str
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
        given = without_effect(await exchange.body(), _HARMLESS, _REFUSED)
        request = struct_of(ChatRequest, given)
        config = request.config()
        async with (
            exchange.attended(),
            self._generations.started(request.model, request.prompt(), config, request.names()) as queue,
        ):
            answering = _Answering(exchange, request, queue, TokenTexts(self._generations.client, request.model))
            await (answering.stream() if request.stream else answering.whole())


class _Answering:
    """One answer in progress."""

    def __init__(self, exchange: Exchange, request: ChatRequest, queue: AsyncResultQueue, texts: TokenTexts) -> None:
        self._exchange, self._request, self._queue, self._texts = exchange, request, queue, texts
        self._id = f"chatcmpl-{queue.request_id}"
        self._created = int(time.time())
        self._headers = {"x-request-id": queue.request_id}
        self._usage = None if request.wants_usage else msgspec.UNSET

    async def whole(self) -> None:
        """Answer once all is generated."""
        logprobs: dict[int, ChatLogprobs] = {}

        async def read(index: int, queue: AsyncResultQueue) -> Text:
            found = Text()
            async for elements in queue:
                found.add(elements)
                if self._request.logprobs and elements.ids_from_generate:
                    more = await self._texts.chat(elements)
                    logprobs.setdefault(index, ChatLogprobs([])).content.extend(more.content)
            found.ended(queue)
            return found

        texts = await concurrently(self._queue.choices, read)
        choices = [
            Choice(index, Answer(text.text), logprobs.get(index), finish_of(text)) for index, text in enumerate(texts)
        ]
        usage = usage_of([self._queue], texts)
        answer = ChatCompletion(self._id, self._created, self._request.model, choices, usage)
        await self._exchange.answer(answer, headers=self._headers)

    async def stream(self) -> None:
        """Answer as text comes."""
        await self._exchange.begin_events(self._headers)
        for index in range(len(self._queue.choices)):
            await self._send(ChunkChoice(index, Delta("assistant", "")))
        texts = await concurrently(self._queue.choices, self._stream_one)
        if self._request.wants_usage:
            usage = usage_of([self._queue], texts)
            await self._exchange.event(Chunk(self._id, self._created, self._request.model, [], usage))
        await self._exchange.end_events(b"data: [DONE]\n\n")

    async def _stream_one(self, index: int, queue: AsyncResultQueue) -> Text:
        found = Text()
        async for elements in queue:
            found.count(elements)
            logprobs = None
            if self._request.logprobs and elements.ids_from_generate:
                logprobs = await self._texts.chat(elements)
            if elements.text or logprobs is not None:
                await self._send(ChunkChoice(index, Delta(content=elements.text), logprobs))
        found.ended(queue)
        await self._send(ChunkChoice(index, Delta(), None, finish_of(found)))
        return found

    async def _send(self, choice: ChunkChoice) -> None:
        await self._exchange.event(Chunk(self._id, self._created, self._request.model, [choice], self._usage))
