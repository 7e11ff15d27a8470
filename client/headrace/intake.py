"""Bounds how many messages a server reads at once, whatever their size."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Protocol

READS = 64
"""Messages that are read at once, by all clients of a server."""

READ_SECONDS = 30.0
"""Seconds that a message may take to arrive once its turn has come."""

FLOW_OPTIONS = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 10),
)
"""gRPC options without which the transport takes in whole messages before anybody asks for them."""


class Room(Protocol):
    """Shares of what all clients may read at once."""

    def has_room(self, party: str) -> bool:
        """Whether one more is within a client's share."""

    def take(self, party: str) -> None:
        """A client reads one more."""

    def give_back(self, party: str) -> None:
        """It reads one fewer."""


class NoMessage(Exception):
    """A call brought no message: none at all, one that was too large, or not in time."""


class Intake:
    """Reads the one message of a call in its turn. Until then it stays with its client, but for what is on the way.

    Clients that want more than their share wait, one after the other in turn; no client keeps out another.

    Args:
        room: what all may read at once, by client.
        seconds: that a message may take to arrive.
    """

    def __init__(self, room: Room, seconds: float = READ_SECONDS) -> None:
        self._room, self._seconds = room, seconds
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def read(self, client: str, messages: AsyncIterator[bytes]) -> bytes:
        """The first message.

        Raises:
            NoMessage: there is none.
        """
        await self._turn(client)
        try:
            async with asyncio.timeout(self._seconds):
                async for message in messages:
                    return message
        except TimeoutError:
            raise NoMessage(f"no whole message came within {self._seconds:g} s") from None
        finally:
            self._room.give_back(client)
            self._wake()
        raise NoMessage("no message came, or one that was too large")

    async def _turn(self, client: str) -> None:
        """Wait until one more of the client's messages may be read; that is then taken."""
        if client not in self._waiting and self._room.has_room(client):
            self._room.take(client)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._room.give_back(client)
                self._wake()
            raise

    def _wake(self) -> None:
        """Let those read for whom there is room now, client by client."""
        for client in list(islice(self._waiting, READS + 1)):  # More clients cannot have their share.
            if not self._drop_left(client):
                continue
            if self._room.has_room(client):
                self._room.take(client)
                self._waiting[client].popleft().set_result(None)
                self._waiting.move_to_end(client)
                self._drop_left(client)

    def _drop_left(self, client: str) -> bool:
        """Forget those who wait no more at the front of a client's; whether one is left."""
        turns = self._waiting[client]
        while turns and turns[0].done():
            turns.popleft()
        if not turns:
            del self._waiting[client]
        return bool(turns)
