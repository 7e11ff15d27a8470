"""Bounds how many messages a server reads at once, whatever their size."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import TypeAlias

from headrace_proto.pure.host_shares import HostShares, host_of

_Turns: TypeAlias = deque["asyncio.Future[None]"]

READS = 64
"""Maximum messages that a server reads at once."""

READ_SECONDS = 30.0
"""Seconds that a message may take to arrive once its turn has come."""

FLOW_OPTIONS = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 10),
)
"""gRPC options without which the transport reads whole messages before they are requested."""


class NoMessage(Exception):
    """A call brought no message: none at all, one that was too large, or not in time."""


class Intake:
    """Reads the one message of a call in its turn. Until then it stays with its client, except for bytes already sent.

    Reads beyond a connection's share wait: hosts take turns, and so do the connections of each. However many calls one
    host begins without sending their messages, a message of another host is read at once.

    Args:
        reads: maximum messages that are read at once.
        seconds: time that a message may take to arrive.

    Attributes:
        shares: reads in progress, by host and connection.
    """

    def __init__(self, reads: int = READS, seconds: float = READ_SECONDS) -> None:
        self.shares = HostShares(reads)
        self._most, self._seconds = reads, seconds
        self._waiting: OrderedDict[str, OrderedDict[str, _Turns]] = OrderedDict()

    async def read(self, peer: str, messages: AsyncIterator[bytes]) -> bytes:
        """Return the first message, once its turn has come.

        Args:
            peer: the connection's other end, as gRPC names it.

        Raises:
            NoMessage: there is none.
        """
        await self._turn(peer)
        try:
            async with asyncio.timeout(self._seconds):
                async for message in messages:
                    return message
        except TimeoutError:
            raise NoMessage(f"no whole message came within {self._seconds:g} s") from None
        finally:
            self.shares.give_back(peer)
            self._wake()
        raise NoMessage("no message came, or one that was too large")

    async def _turn(self, peer: str) -> None:
        """Wait until one more message of the connection may be read, and count it."""
        host = host_of(peer)
        if peer not in self._waiting.get(host, ()) and self.shares.can_take(peer):
            self.shares.take(peer)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, OrderedDict()).setdefault(peer, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Woken just before: the share is already this read's, and no caller is left to return it.
            if turn.done() and not turn.cancelled():
                self.shares.give_back(peer)
                self._wake()
            raise

    def _wake(self) -> None:
        """Wake waiting reads within the limits: one of each host, then the next of each."""
        changed = True
        while changed:
            hosts = list(islice(self._waiting, self._most + 1))  # One of these holds nothing, so it has a share left.
            changed = sum(map(self._wake_one, hosts)) > 0

    def _wake_one(self, host: str) -> bool:
        """Wake one read of a host, of the connection whose turn it is. Return True if one was, or if some had left."""
        connections = self._waiting[host]
        woken = left = False
        for peer in list(islice(connections, self._most + 1)):
            turns = connections[peer]
            _drop_left(turns)
            if turns and self.shares.can_take(peer):
                self.shares.take(peer)
                turns.popleft().set_result(None)
                connections.move_to_end(peer)
                woken = True
            if not turns:
                del connections[peer]
                left = True
            if woken:
                self._waiting.move_to_end(host)
                break
        if not connections:
            del self._waiting[host]
        return woken or left


def _drop_left(turns: _Turns) -> None:
    """Drop cancelled reads from the front of the queue."""
    while turns and turns[0].done():
        turns.popleft()
