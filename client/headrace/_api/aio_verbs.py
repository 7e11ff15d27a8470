"""Turning methods of the synchronous client into those of the asynchronous one.

A method builds a request and converts the response, and waits in `_call` only. The async client's `_call` returns
a coroutine, which the method returns in turn; so one function serves both clients.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return the awaited version of a method."""
    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], _awaiting(method))


def awaited_as(
    method: Callable[Concatenate[Any, P], Any], answer: type[R]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return the awaited version of a method whose result has a type of the asynchronous client."""
    return cast(Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], _answering(_awaiting(method), answer))


def answering(method: Callable[Concatenate[Any, P], Any], answer: type[R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that does not wait, and whose result has a type of the asynchronous client."""

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
    """Set the return annotation that `help` shows."""
    name = answer.__name__ if type(answer) is type else str(answer)
    verb.__signature__ = inspect.signature(verb).replace(return_annotation=name)  # type: ignore[attr-defined]
    return verb
