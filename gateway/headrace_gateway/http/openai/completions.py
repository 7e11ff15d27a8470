"""`/v1/completions`."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any, Literal

import msgspec
from headrace import AsyncResultQueue
from headrace.types import GeneratedElements

from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.http.accepted import headers_of
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import invalid
from headrace_gateway.http.generation import Generations, Text
from headrace_gateway.http.openai import fields, formats
from headrace_gateway.http.openai.answering import concurrently, finish_of, relay, usage_of
from headrace_gateway.http.openai.echo import Echo, check_entries, echoes_of
from headrace_gateway.http.openai.token_texts import CompletionLogprobs, TokenTexts
from headrace_gateway.http.templates import PLACE, Template, event_of

HARMLESS: dict[str, Any] = fields.HARMLESS | formats.HARMLESS
"""Values of fields that change nothing here; None: any value."""

REFUSED = formats.REFUSED | {"suffix": ""}
"""Fields that are not supported, and what to give instead."""

MAX_PROMPTS = 64
"""Maximum prompts of one request."""


class CompletionRequest(fields.Sampling, forbid_unknown_fields=True, kw_only=True):
    """Prompts to complete."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool | None = None

    @property
    def several(self) -> bool:
        """True if the prompts are a list, which may have one."""
        given: Any = self.prompt
        return not isinstance(given, str) and not (given and all(isinstance(one, int) for one in given))

    def prompts(self) -> list[dict[str, Any]]:
        """Return each prompt as the client takes it.

        Raises:
            Failure: there are none or too many, or their forms are mixed.
        """
        given: Any = self.prompt if self.several else [self.prompt]
        if not 1 <= len(given) <= MAX_PROMPTS:
            raise invalid("prompt", f"has {len(given)} prompts; allowed: 1 to {MAX_PROMPTS}")
        if any(isinstance(one, int) for one in given):
            raise invalid("prompt", "mixes token ids with prompts")
        if self.add_special_tokens is not None and any(isinstance(one, list) for one in given):
            raise invalid("add_special_tokens", "is set for a prompt of token ids")
        return [
            {"ids": one} if isinstance(one, list) else {"text": one, "add_special_tokens": self.add_special_tokens}
            for one in given
        ]

    @property
    def width(self) -> int:
        """Beams of a search where `num_beams` does not say it."""
        return self.best_of or self.n or 1

    def config(self) -> dict[str, Any]:
        """Return the generation config. Raises Failure."""
        found = super().config() | {"best_of": None if self.use_beam_search else self.best_of}
        if self.logprobs is None:
            return found
        found |= {"logprobs": True, "top_logprobs": self.logprobs}
        return found | ({"prompt_logprobs": self.logprobs} if self.echo else {})

    def names(self, index: int = 0) -> dict[str, str]:
        """Return what this request calls fields of the wire contract, for one of its prompts. Raises Failure."""
        found = super().names() | {"top_logprobs": "logprobs", "prompt_logprobs": "logprobs"}
        if not self.several:
            return found
        return found | dict.fromkeys(("prompt", "text", "ids", "token_ids"), f"prompt[{index}]")


class Choice(msgspec.Struct):
    """One completion, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    """Completions, or a part of a stream of them."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: fields.Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


class Completions:
    """Completes prompts.

    Args:
        generations: starts requests.
        access: says whether all of a request's may be started.
    """

    def __init__(self, generations: Generations, access: Access) -> None:
        self._generations, self._access = generations, access

    async def __call__(self, exchange: Exchange) -> None:
        """Complete the prompts of one request."""
        request = await exchange.read(CompletionRequest, HARMLESS, REFUSED)
        config, prompts = request.config(), request.prompts()
        _check_count(len(prompts))
        async with exchange.attended(), AsyncExitStack() as stack:
            with self._access.starting_several(len(prompts)):
                await self._validate(request, prompts, config)
                firsts = [
                    await stack.enter_async_context(
                        self._generations.started(request.model, prompt, config, request.names(index))
                    )
                    for index, prompt in enumerate(prompts)
                ]
            client = self._generations.client
            texts = TokenTexts(client, firsts[0].request.model_name)
            echoes = [Echo()] * len(prompts)
            if request.echo:
                if request.logprobs is not None:
                    check_entries(firsts, 1 + request.logprobs)
                learning = None if request.logprobs is None else texts
                echoes = await echoes_of(client, firsts, prompts, learning, request.names)
            completing = _Completing(exchange, request, firsts, texts, echoes)
            await (completing.stream() if request.stream else completing.whole())

    async def _validate(
        self, request: CompletionRequest, prompts: list[dict[str, Any]], config: dict[str, Any]
    ) -> None:
        """Validate several prompts before the first one starts. Raises Failure: it names the first that is wrong."""
        if len(prompts) == 1:  # Its start validates it.
            return
        for index, prompt in enumerate(prompts):
            await self._generations.validate(request.model, prompt, config, request.names(index))


def _check_count(prompts: int) -> None:
    """Refuse more prompts than the caller's key ever allows at once: to try again would not help."""
    key = callers.current().key
    for name in ("concurrent_requests", "requests_per_minute"):
        most = None if key is None else getattr(key, name)
        if key is not None and most is not None and prompts > most:
            text = f'has {prompts} entries, each a request of its own, and API key "{key.name}" allows {most} ({name})'
            raise invalid("prompt", f"{text}: send fewer at once")


class _Completing:
    """One answer in progress.

    Args:
        firsts: the first sequence of each prompt.
        texts: learns the texts of tokens.
        echoes: what the texts of each prompt begin with.
    """

    def __init__(
        self,
        exchange: Exchange,
        request: CompletionRequest,
        firsts: list[AsyncResultQueue],
        texts: TokenTexts,
        echoes: list[Echo],
    ) -> None:
        self._exchange, self._request, self._firsts, self._texts = exchange, request, firsts, texts
        self._queues = [queue for first in firsts for queue in first.choices]
        self._echoes = [echo for first, echo in zip(firsts, echoes, strict=True) for _ in first.choices]
        self._id = f"cmpl-{firsts[0].request_id}"
        self._created = int(time.time())
        self._headers = headers_of((first.request, request.names(index)) for index, first in enumerate(firsts))
        self._usage = None if request.wants_usage else msgspec.UNSET

    async def whole(self) -> None:
        """Answer once all is generated."""
        choices = [Choice(index, "") for index in range(len(self._queues))]

        async def read(index: int, queue: AsyncResultQueue) -> Text:
            found, choice, echo = Text(), choices[index], self._echoes[index]
            offset = len(echo.text)
            if self._request.logprobs is not None:
                choice.logprobs = echo.begin()
            async for elements in queue:
                found.add(elements)
                if choice.logprobs is not None and elements.ids_from_generate:
                    await self._texts.learn(elements)
                    choice.logprobs.extend(self._texts.completion(elements, offset))
                offset += len(elements.text)
            found.ended(queue)
            choice.text, choice.finish_reason = echo.text + found.text, finish_of(found)
            return found

        texts = await concurrently(self._queues, read)
        usage = usage_of(self._firsts, texts)
        answer = Completion(self._id, self._created, self._request.model, choices, usage)
        await self._exchange.answer(answer, headers=self._headers)

    async def stream(self) -> None:
        """Answer as text comes."""
        await self._exchange.begin_events(self._headers)
        texts = await concurrently(self._queues, self._stream_one)
        if self._request.wants_usage:
            usage = usage_of(self._firsts, texts)
            await self._exchange.event(Completion(self._id, self._created, self._request.model, [], usage))
        await self._exchange.end_events(b"data: [DONE]\n\n")

    async def _stream_one(self, index: int, queue: AsyncResultQueue) -> Text:
        found, echo, plain = Text(), self._echoes[index], Template(self._chunk(Choice(index, PLACE)))
        offset, with_logprobs = len(echo.text), self._request.logprobs is not None
        if self._request.echo:
            await self._exchange.event(self._chunk(Choice(index, echo.text, echo.logprobs)))

        def events(elements: GeneratedElements) -> bytes:
            nonlocal offset
            found.count(elements)
            if with_logprobs and elements.ids_from_generate:
                logprobs = self._texts.completion(elements, offset)
                offset += len(elements.text)
                return event_of(self._chunk(Choice(index, elements.text, logprobs)))
            return plain.event(elements.text) if elements.text else b""

        await relay(self._exchange, queue, events, self._texts if with_logprobs else None)
        found.ended(queue)
        await self._exchange.event(self._chunk(Choice(index, "", None, finish_of(found))))
        return found

    def _chunk(self, choice: Choice) -> Completion:
        return Completion(self._id, self._created, self._request.model, [choice], self._usage)
