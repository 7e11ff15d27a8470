"""Calls that start several requests: all of them, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Left:
    """The requests of one call that have yet to start.

    Attributes:
        owner: whose requests they are.
        unchecked: requests that were counted in the rates of their owner, and have not come yet.
        entering: the request that came last has not been sent to an engine yet.
    """

    expected: Counter[str]
    owner: str
    unchecked: int
    entering: bool = False


_left: ContextVar[Left | None] = ContextVar("headrace-gateway-starting-several", default=None)


@contextmanager
def starting(expected: Counter[str], owner: str, count: int) -> Iterator[Left]:
    """Count requests of an owner as expected, until they are started or the block ends."""
    left = Left(expected, owner, count)
    expected[owner] += count
    token = _left.set(left)
    try:
        yield left
    finally:
        _left.reset(token)
        expected[owner] -= left.unchecked + left.entering
        if not expected[owner]:
            del expected[owner]


def checked(*, starts: bool) -> bool:
    """Note that a request comes. Return whether it is one of several that were counted before.

    Args:
        starts: it is to start, and not only to be validated.
    """
    left = _left.get()
    if left is None or not left.unchecked:
        return False
    if not starts:
        return True
    started()  # An earlier one that no engine was asked for.
    left.unchecked -= 1
    left.entering = True
    return True


def started() -> None:
    """Note that the request that came last is sent to an engine, and so is counted there."""
    left = _left.get()
    if left is not None and left.entering:
        left.entering = False
        left.expected[left.owner] -= 1
