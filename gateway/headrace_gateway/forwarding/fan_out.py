"""The same question to several engines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace_gateway.forwarding.engines import Engine
from headrace_gateway.status import CallError

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What one engine answered; exactly one of answer and error is there."""

    engine: Engine
    answer: T | None = None
    error: CallError | None = None


async def ask_each(engines: Sequence[Engine], ask: Callable[[Engine], Awaitable[T]]) -> list[Outcome[T]]:
    """Asks all at once and waits for all; the outcomes have the order of the engines."""

    async def one(engine: Engine) -> Outcome[T]:
        try:
            return Outcome(engine, answer=await ask(engine))
        except CallError as error:
            return Outcome(engine, error=error)

    return await together([one(engine) for engine in engines])


async def together(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs all at once. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def having_it(outcomes: Sequence[Outcome[T]]) -> list[Outcome[T]]:
    """Without the engines that do not know the model, unless none knows it."""
    known = [outcome for outcome in outcomes if outcome.error is None or outcome.error.reason != "UNKNOWN_MODEL"]
    return known or list(outcomes)


def answers(outcomes: Sequence[Outcome[T]]) -> list[T]:
    """The answers of those that gave one.

    Raises:
        CallError: none did; the first one's failure.
    """
    given = [outcome.answer for outcome in outcomes if outcome.answer is not None]
    if not given:
        raise next(outcome.error for outcome in outcomes if outcome.error is not None)
    return given
