"""Stored responses: those that this gateway follows, kept until some time after their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace_proto.pure.host_shares import host_of
from headrace_proto.pure.shares import Shares

from headrace_gateway import status
from headrace_gateway.access import callers
from headrace_gateway.http.callers import Caller
from headrace_gateway.http.failures import refusal_of
from headrace_gateway.http.openai.responses.sources import Followed

KEEP_SECONDS = 600.0
"""Seconds for which a stored response is kept after its end."""

MAX_BYTES = 256 << 20
"""Maximum bytes that stored responses may take in a gateway, shared by hosts."""

_FLAT = 64 << 10
"""Bytes that a response counts for, beside its body."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A response that is kept, what its host's share is charged for it, and what lets go of its client."""

    followed: Followed
    host: str
    cost: int
    let_go: Callable[[], None]


class Store:
    """The responses that this gateway follows, each until some time after its end.

    Args:
        release: releases a request by its handle.
        hold: keeps the client of the current caller open, until what it returns is called.
    """

    def __init__(self, release: Callable[[str], None], hold: Callable[[], Callable[[], None]]) -> None:
        self._release, self._hold = release, hold
        self._shares: Shares[str] = Shares(MAX_BYTES)
        self._held: dict[tuple[str, str], _Held] = {}

    def find(self, response_id: str) -> Followed | None:
        """Return a response of the current caller's owner; None if this gateway does not have it."""
        held = self._held.get(_key(response_id))
        return None if held is None else held.followed

    def reserve(self, caller: Caller, size: int) -> None:
        """Reserve bytes for a response, for `add` or `give_back`.

        Args:
            caller: whose it is.
            size: bytes of its body.

        Raises:
            Failure: 429, its host has used up its share.
        """
        host = host_of(caller.peer)
        if not self._shares.can_take(host, size + _FLAT):
            why = self._shares.refusal(host, "bytes of stored responses", "this client's host has")
            raise refusal_of(status.full_calls(why))
        self._shares.take(host, size + _FLAT)

    def give_back(self, caller: Caller, size: int) -> None:
        """Give back the bytes of a response that was not started."""
        self._shares.give_back(host_of(caller.peer), size + _FLAT)

    def add(self, followed: Followed, caller: Caller, size: int) -> None:
        """Keep a response, for which bytes are reserved."""
        name = followed.response.id
        self._held[_key(name)] = _Held(followed, host_of(caller.peer), size + _FLAT, self._hold())
        loop = asyncio.get_running_loop()
        followed.task.add_done_callback(lambda _: loop.call_later(KEEP_SECONDS, self.drop, name))

    def drop(self, response_id: str) -> None:
        """Release a response of the current caller's owner and forget it, if it is here."""
        held = self._held.pop(_key(response_id), None)
        if held is not None:
            held.followed.task.cancel()
            self._shares.give_back(held.host, held.cost)
            self._release(held.followed.accepted.handle)
            held.let_go()

    async def close(self) -> None:
        """Stop following. What runs in the background goes on, and can be read through another gateway."""
        tasks = [held.followed.task for held in self._held.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(response_id: str) -> tuple[str, str]:
    """Return what finds a response: for owners other than its own it does not exist."""
    return callers.current().owner, response_id
