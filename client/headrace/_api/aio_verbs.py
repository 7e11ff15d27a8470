"""Makes the verbs of the asynchronous client out of those of the other one.

A verb says what is asked and what becomes of the answer, and waits in one place alone, a method of its client: `_ask`.
There the asynchronous client answers what is to be awaited; so the verb's own function serves both clients.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A verb whose answer is awaited."""
    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], _awaiting(method))


def awaited_as(
    method: Callable[Concatenate[Any, P], Any], answer: type[R]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A verb whose answer is awaited, and is the asynchronous client's own kind."""
    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], _answering(_awaiting(method), answer))


def answering(method: Callable[Concatenate[Any, P], Any], answer: type[R]) -> Callable[Concatenate[Any, P], R]:
    """A verb that waits for nothing, and answers the asynchronous client's own kind."""

    @functools.wraps(method)
    def verb(*given: Any, **named: Any) -> Any:
        return method(*given, **named)

    return cast(Callable[Concatenate[Any, P], R], _answering(verb, answer))


def _awaiting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def verb(*given: Any, **named: Any) -> Any:
        return await method(*given, **named)

    return verb


def _answering(verb: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    """Has `help` tell what the verb answers here."""
    name = answer.__name__ if type(answer) is type else str(answer)
    verb.__signature__ = inspect.signature(verb).replace(return_annotation=name)  # type: ignore[attr-defined]
    return verb
