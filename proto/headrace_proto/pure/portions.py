"""Handling a long message in portions, so that others have a turn in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from headrace_proto.pure.limits import PORTION

Item = TypeVar("Item")


def in_portions(items: Iterable[Item], name: str, handle: Callable[[Item, str], None]) -> Iterator[None]:
    """Handle each item with its path in the message, such as "attach[0]", and yield after each PORTION of them."""
    for number, item in enumerate(items, 1):
        handle(item, f"{name}[{number - 1}]")
        if number % PORTION == 0:
            yield
