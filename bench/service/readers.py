"""The measured clients: a process with some sessions, each with its queues, read as in a program."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from headrace import Client, ResultQueue
from headrace.types import GeneratedElements

from bench.service.scripted_engine import id_of

MODEL = "script"
LENGTH = 4000


@dataclass(frozen=True)
class Share:
    """Share of one process.

    Attributes:
        address: address of the gateway, or of an engine.
        first: number of its first request; prompts differ.
        sessions: number of clients, each with a session stream of its own.
        requests: number of requests of each session.
    """

    address: str
    first: int
    sessions: int
    requests: int


@dataclass
class Readings:
    """Results of one session.

    Attributes:
        ids: newest id of each read.
        arrived: CLOCK_MONOTONIC in nanoseconds when the first queue had it.
        read: the same when all queues were read.
        tokens: ids of each read, over all queues.
    """

    ids: list[int] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Tally:
    """Checks that a queue's ids are of consecutive steps, and counts them."""

    def __init__(self, queue: ResultQueue) -> None:
        self.queue = queue
        self._expected: int | None = None

    def take(self, elements: GeneratedElements | None) -> int:
        """Take new ids; return their number.

        Raises:
            RuntimeError: an id is missing or repeated.
        """
        if elements is None:
            return 0
        ids = elements.ids_from_generate
        for token_id in ids:
            if self._expected not in (None, token_id):
                raise RuntimeError(f"id {token_id} came where {self._expected} was to come")
            self._expected = id_of(token_id - id_of(0) + 1)
        return len(ids)


class Session:
    """One client and its queues, read by one thread: it waits at the first queue, then reads the others."""

    def __init__(self, share: Share, number: int, stop: threading.Event) -> None:
        self.client = Client(share.address)
        self.readings = Readings()
        first = share.first + number * share.requests
        self._tallies = [Tally(self._start(first + request)) for request in range(share.requests)]
        self._stop = stop

    def _start(self, number: int) -> ResultQueue:
        prompt = [1 + number % 100, 1 + number // 100, 7]
        return self.client.start_request(MODEL, ids=prompt, max_new_tokens=LENGTH, ignore_eos=True)[1]

    def wait(self) -> None:
        """Wait until every queue has a token."""
        for tally in self._tallies:
            tally.take(tally.queue.Get())

    def read(self) -> Readings:
        """Read until stopped."""
        lead, *others = self._tallies
        readings = self.readings
        while not self._stop.is_set() and (elements := lead.queue.Get()) is not None:
            arrived = time.monotonic_ns()
            tokens = lead.take(elements) + sum(other.take(other.queue.GetNoWait()) for other in others)
            readings.ids.append(elements.ids_from_generate[-1])
            readings.arrived.append(arrived)
            readings.read.append(time.monotonic_ns())
            readings.tokens.append(tokens)
        self.client.close()
        return readings


def read(pipe: Connection, share: Share) -> None:
    """Start everything, report it, read until stopped, and send the Readings of each session."""
    stop = threading.Event()
    sessions = [Session(share, number, stop) for number in range(share.sessions)]
    for session in sessions:
        session.wait()
    with ThreadPoolExecutor(len(sessions)) as threads:
        reading = [threads.submit(session.read) for session in sessions]
        pipe.send("reading")
        pipe.recv()
        stop.set()
        pipe.send([one.result() for one in reading])
