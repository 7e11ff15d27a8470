"""Answering with several sequences: all at once, or as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headrace import AsyncResultQueue
from headrace.types import FinishReason, GeneratedElements

from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.generation import Text
from headrace_gateway.http.openai.fields import Usage
from headrace_gateway.http.openai.token_texts import TokenTexts

_FINISHES = {
    FinishReason.MAX_LENGTH: "length",
    FinishReason.DEADLINE: "length",
    FinishReason.RESPONSE_FORMAT_LIMIT: "length",
}


def finish_of(text: Text) -> str:
    """Return why a sequence ended: "stop", or "length" where it is cut off."""
    return _FINISHES.get(text.finish, "stop")


async def concurrently(
    queues: Sequence[AsyncResultQueue], read: Callable[[int, AsyncResultQueue], Coroutine[Any, Any, Text]]
) -> list[Text]:
    """Read all sequences at the same time; the first failure ends all.

    Args:
        queues: the sequences.
        read: reads one, given its number among them.
    """
    if len(queues) == 1:
        return [await read(0, queues[0])]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(number, queue)) for number, queue in enumerate(queues)]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def relay(
    exchange: Exchange,
    queue: AsyncResultQueue,
    events: Callable[[GeneratedElements], bytes],
    texts: TokenTexts | None,
) -> None:
    """Send the events of a sequence.

    Args:
        exchange: where to.
        queue: the sequence.
        events: returns encoded events, which may be none.
        texts: learns the texts of tokens before their events; None: they are not needed.
    """
    if texts is None:
        await exchange.relay(queue, events)
        return
    async for elements in queue:
        await texts.learn(elements)
        await exchange.send(events(elements))


def usage_of(prompts: Sequence[AsyncResultQueue], texts: Sequence[Text]) -> Usage:
    """Return the usage of a request.

    Args:
        prompts: the first sequence of each prompt.
        texts: what was generated, of all sequences.
    """
    prompt = sum(queue.request.prompt_token_count for queue in prompts)
    each = max(1, len(texts) // max(1, len(prompts)))
    cached = sum(text.cached for text in texts[::each])
    return Usage.of(prompt, sum(text.tokens for text in texts), cached)
