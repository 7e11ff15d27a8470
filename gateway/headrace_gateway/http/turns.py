"""Turns at what only a few may do at once: parties have them one after the other, however many each waits for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace_proto.pure.shares import Shares

from headrace_gateway import status
from headrace_gateway.http.failures import refusal_of


class Turns:
    """Lets a few callers go on at once, and the others wait.

    Args:
        most: maximum that go on at once.
        waiting: maximum that wait, shared by parties.
    """

    def __init__(self, most: int, waiting: int) -> None:
        self._free = most
        self._shares: Shares[str] = Shares(waiting)
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, party: str) -> AsyncIterator[None]:
        """Go on in the block once it is the party's turn.

        Args:
            party: whose turn it is.

        Raises:
            Failure: 429, the party waits for so many already that others need the rest.
        """
        if self._free:
            self._free -= 1
        else:
            await self._wait(party)
        try:
            yield
        finally:
            self._pass()

    async def _wait(self, party: str) -> None:
        if not self._shares.can_take(party):
            why = self._shares.refusal(party, "large messages waiting", "this caller has")
            raise refusal_of(status.full_calls(why))
        own = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append(own)
        with self._shares.holding(party):
            try:
                await own
            except asyncio.CancelledError:
                if own.done() and not own.cancelled():
                    self._pass()  # Its turn had just come.
                raise

    def _pass(self) -> None:
        """Give a turn to the first that waits of the party whose turn is next."""
        while self._waiting:
            party, own = next(iter(self._waiting.items()))
            first = own.popleft()
            if own:
                self._waiting.move_to_end(party)
            else:
                del self._waiting[party]
            if not first.done():
                first.set_result(None)
                return
        self._free += 1
