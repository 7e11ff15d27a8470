"""Fan-out: the same call to several engines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace_gateway.engines.engine import Engine
from headrace_gateway.status import CallError

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """Outcome of a call to one engine: either `answer` or `error` is set."""

    engine: Engine
    answer: T | None = None
    error: CallError | None = None


async def ask_each(engines: Sequence[Engine], ask: Callable[[Engine], Awaitable[T]]) -> list[Outcome[T]]:
    """Call all engines concurrently and wait for all; outcomes are in the order of the engines."""

    async def one(engine: Engine) -> Outcome[T]:
        try:
            return Outcome(engine, answer=await ask(engine))
        except CallError as error:
            return Outcome(engine, error=error)

    return await together([one(engine) for engine in engines])


async def together(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all concurrently. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def knowing_model(outcomes: Sequence[Outcome[T]]) -> list[Outcome[T]]:
    """Drop the outcomes UNKNOWN_MODEL, unless there are no others."""
    known = [outcome for outcome in outcomes if outcome.error is None or outcome.error.reason != "UNKNOWN_MODEL"]
    return known or list(outcomes)


def answers(outcomes: Sequence[Outcome[T]]) -> list[T]:
    """Return the answers of the engines that answered.

    Raises:
        CallError: none did; the failure of the first.
    """
    given = [outcome.answer for outcome in outcomes if outcome.answer is not None]
    if not given:
        raise next(outcome.error for outcome in outcomes if outcome.error is not None)
    return given
