"""Rate limit of attaches, per host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from headrace_proto.pure.host_shares import host_of

BURST = 2_048
"""Number of attaches that a host may send at once."""

RATE = 4_096
"""Attaches per second beyond the burst. They take a few percent of an engine's event loop."""


class AttachPace:
    """Limits a host to BURST attaches at once and RATE per second, as all share one stream to each engine.

    Connections of a host take turns, so that none is slowed down by how many attaches or sessions another one has.

    Args:
        sleep: waits for a number of seconds.
    """

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.sleep = sleep
        self._paid = float("-inf")
        # The sessions of a connection own its lock, which goes with the last of them.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def connection(self, peer: str) -> ConnectionPace:
        """Return the pace of one of its connections."""
        return ConnectionPace(self, self._turns.setdefault(peer, asyncio.Lock()))

    def delay(self, count: int, now: float) -> float:
        """Count attaches. Return the seconds for which their connection must not be read."""
        self._paid = max(self._paid, now - BURST / RATE) + count / RATE
        return max(0.0, self._paid - now)

    def rest(self, now: float) -> float:
        """Return the seconds until BURST attaches are allowed at once again."""
        return max(0.0, self._paid + BURST / RATE - now)


class ConnectionPace:
    """The pace of one connection: it waits for one portion of its attaches at a time.

    Args:
        host: the pace of its host.
        turn: held by the session whose attaches are waited for.
    """

    def __init__(self, host: AttachPace, turn: asyncio.Lock) -> None:
        self._host, self._turn = host, turn

    async def wait(self, count: int) -> None:
        """Let other tasks run, and count attaches: return once there may be further ones."""
        if not count:
            await self._host.sleep(0)
            return
        async with self._turn:
            await self._host.sleep(self._host.delay(count, asyncio.get_running_loop().time()))


class AttachPaces:
    """The paces of all hosts. A host keeps its pace until BURST is allowed at once again."""

    def __init__(self) -> None:
        self._hosts: WeakValueDictionary[str, AttachPace] = WeakValueDictionary()

    @contextmanager
    def of(self, peer: str) -> Iterator[ConnectionPace]:
        """Yield the pace of a connection, for a session of it.

        Args:
            peer: the connection's other end, as gRPC names it.
        """
        host = self._hosts.setdefault(host_of(peer), AttachPace())
        try:
            yield host.connection(peer)
        finally:
            loop = asyncio.get_running_loop()
            loop.call_later(host.rest(loop.time()), _forget, host)


def _forget(pace: AttachPace) -> None:
    """Release a pace. The timer that calls this owns it until then: sessions find paces by weak references."""
