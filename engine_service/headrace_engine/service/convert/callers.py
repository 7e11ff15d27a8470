"""Who calls: whom a call's share of what all share is counted for."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

METADATA_KEY = "headrace-caller"
"""What a gateway tells its clients apart by. Believed of whoever reaches an engine, for shares alone."""

MAX_CALLER = 64
"""Characters of it that count."""

_caller: ContextVar[str] = ContextVar("headrace-caller", default="")


def note_caller(context: Any) -> None:
    """Remember, while the present call lasts, who makes it: as its gateway says, else by its connection."""
    told = dict(context.invocation_metadata() or ()).get(METADATA_KEY) or context.peer()
    _caller.set(str(told)[:MAX_CALLER])


def caller() -> str:
    """Who makes the present call; "" in the engine's own process."""
    return _caller.get()
