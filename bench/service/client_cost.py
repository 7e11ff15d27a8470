"""Measure the cost of a token in the client, on a session stream: 256 queues, one token each a step.

    python -m bench.service.client_cost [--queues 256] [--steps 500]

Prints microseconds of CPU a token, medians over the steps: a step's message parsed (`parse`), taken into the queues
(`take in`), and one `GetNoWait` of each (`read`); then the same of an event loop's client, with a function that is
given each token (`pass on`). Without threads and connections, which `bench.service` measures with them.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

from headrace import AsyncResultQueue, ResultQueue, RetryPolicy, types
from headrace._base.aio_waiting import AsyncSystemClock, HomeLoop
from headrace._base.retry import SystemClock
from headrace._streaming.aio_feed import AsyncFeed
from headrace._streaming.delivered import Delivered
from headrace._streaming.feed import BaseFeed, Feed
from headrace._streaming.reader import SequenceReader
from headrace._streaming.recovery import Recovery
from headrace._streaming.session import ClientSession
from headrace._streaming.subscription import subscription_of
from headrace_proto.v1 import session_pb2


class Stages:
    """What passed in each stage of each step."""

    def __init__(self) -> None:
        self._spent: dict[str, list[float]] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a block."""
        begin = time.process_time()
        yield
        self._spent.setdefault(name, []).append(time.process_time() - begin)

    def print(self, tokens: int) -> None:
        """Print the medians."""
        for name, seconds in self._spent.items():
            print(f"{name:10}{median(seconds) / tokens * 1e6:8.2f} us a token")


class Steps:
    """The messages of a server with endless sequences."""

    def __init__(self, channels: int) -> None:
        self._channels = range(1, channels + 1)
        self._checksums = [0] * channels
        self._position = 0

    def next(self) -> bytes:
        """Return a step."""
        ids = [1_000 + (self._position + channel) % 40_000 for channel in self._channels]
        pairs = zip(ids, self._checksums, strict=True)
        self._checksums = [zlib.crc32(token_id.to_bytes(4, "little"), before) for token_id, before in pairs]
        step = session_pb2.StepBatch(
            channels=self._channels,
            positions=[self._position] * len(ids),
            counts=[1] * len(ids),
            token_ids=ids,
            texts=[f" word{token_id}" for token_id in ids],
            checksums=self._checksums,
        )
        self._position += 1
        return session_pb2.SessionResponse(step=step).SerializeToString()


class Server:
    """A session with its subscriptions, and the steps that it is given.

    Args:
        lock: guards the session.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        clock = SystemClock()
        self._recovery = Recovery(RetryPolicy(), clock)
        self.session = ClientSession(self._recovery, clock)

    def subscribe(self, feed: BaseFeed) -> None:
        """Fill a feed, as both drivers do."""
        subscription = subscription_of(feed, self._recovery, lambda: None)
        feed.moved = lambda: self.session.moved(subscription)
        self.session.add(subscription)

    def attach(self) -> None:
        """Confirm all attaches."""
        self.session.open()
        request = self.session.outgoing()
        attached = [session_pb2.Attached(channel=one.channel) for one in request.attach] if request else []
        with self._lock:
            self.session.receive(session_pb2.SessionResponse(attached=attached))

    def run(self, queues: int, steps: int, stages: Stages) -> Iterator[None]:
        """Measure steps; yield after each was taken in."""
        source = Steps(queues)
        for _ in range(steps):
            data = source.next()
            with stages.stage("parse"):
                message = session_pb2.SessionResponse.FromString(data)
            with stages.stage("take in"), self._lock:
                self.session.receive(message)
            yield
            self.session.outgoing()


def request_of(handle: str) -> types.AcceptedRequest:
    """Return an accepted request; only its ids matter here."""
    return types.AcceptedRequest(handle, handle, "model", {}, 0, 3, "", (), 0, 0, joined=False)


def threads(queues: int, steps: int) -> None:
    """Measure the client of threads."""
    lock, clock = threading.RLock(), SystemClock()
    server, stages = Server(lock), Stages()
    found = []
    for number in range(queues):
        names: dict[str, Any] = {"handle": f"e/i/{number}", "index": 0, "request_id": str(number)}
        feed = Feed(SequenceReader(0, str(number), Delivered()), lock, clock, **names)
        server.subscribe(feed)
        found.append(ResultQueue(feed, request=request_of(feed.handle), index=0, fetch_info=lambda: None))
    server.attach()
    for _ in server.run(queues, steps, stages):
        with stages.stage("read"):
            for queue in found:
                queue.GetNoWait()
    stages.print(queues)


async def loop(queues: int, steps: int) -> None:
    """Measure the client of an event loop, which gives each token on."""
    home, clock = HomeLoop(), AsyncSystemClock()
    server, stages = Server(nullcontext()), Stages()
    taken = 0

    def take(elements: types.GeneratedElements) -> bool:
        nonlocal taken
        taken += len(elements.ids_from_generate)
        return True

    async def nothing() -> None:
        return None

    tasks = []
    for number in range(queues):
        names: dict[str, Any] = {"handle": f"e/i/{number}", "index": 0, "request_id": str(number)}
        feed = AsyncFeed(SequenceReader(0, str(number), Delivered()), home, clock, **names)
        server.subscribe(feed)
        queue = AsyncResultQueue(feed, request=request_of(feed.handle), index=0, fetch_info=nothing)
        tasks.append(asyncio.create_task(queue.pass_on(take)))
    server.attach()
    await asyncio.sleep(0)
    for _ in server.run(queues, steps, stages):
        pass
    assert taken == queues * steps
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print("an event loop, with what takes them:")
    stages.print(queues)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    threads(arguments.queues, arguments.steps)
    asyncio.run(loop(arguments.queues, arguments.steps))


if __name__ == "__main__":
    main()
