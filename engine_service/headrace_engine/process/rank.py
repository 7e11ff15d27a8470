"""`python -m headrace_engine.process.rank FD`: a rank other than 0, which rank 0 commands over the socket FD.

It ends when rank 0 tells it to, or is gone, and by any failure, since the ranks compute in step.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial

from headrace_proto.pure.faults import is_fault

from headrace_engine import child_logs
from headrace_engine.core.adapters import AdapterReads, why_not
from headrace_engine.core.failure import failure
from headrace_engine.core.ranks import RankRunner, followed_steps
from headrace_engine.core.runner import BlockCopies
from headrace_engine.ipc.commands import Ping, Shutdown
from headrace_engine.ipc.frames import FrameReader, Message, frame
from headrace_engine.ipc.messages import Pong
from headrace_engine.ipc.ranks import (
    AllocateRank,
    DropRankAdapter,
    JoinRanks,
    LoadRankAdapter,
    RankAdapterLoaded,
    RankAdapterRead,
    RankCopies,
    RankLoaded,
    RankPlan,
    RankSizes,
    RankStep,
    ReadRankAdapter,
)
from headrace_engine.process.ends import end_with, tie_to_parent
from headrace_engine.process.run import make_rank

_CHUNK = 1 << 18
_ORPHAN_LIMIT = 1.0
"""Seconds within which a rank must end once rank 0 is gone, whatever its device is doing."""

_log = logging.getLogger(__name__)


def main(descriptor: int) -> int:
    """Serve rank 0 until it is gone; return the exit status of the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Rank 0 decides when a rank ends.
    tie_to_parent()  # A device that hangs could keep its memory for a rank that nobody knows of.
    faulthandler.enable()
    child_logs.configure("rank")
    with socket.socket(fileno=descriptor) as connection:
        ended = threading.Event()
        end_with(descriptor, ended, _ORPHAN_LIMIT)
        try:
            _serve(connection)
        except OSError:
            return 0  # Rank 0 is gone.
        except BaseException as error:
            if not is_fault(error):
                raise
            with suppress(OSError):
                connection.sendall(frame(failure(error)))
            return 1
        ended.set()
    return 0


def _serve(connection: socket.socket) -> None:
    commands = _Commands(connection)
    plan = commands.next()
    if plan is None:
        return
    if not isinstance(plan, RankPlan):
        raise ValueError(f"the first message to a rank must be its plan, not {type(plan).__name__}")
    with closing(make_rank(plan.plan, plan.rank)) as runner:
        # Rank 0 reports how far the loading is; its pings are answered as often, so that it sees this rank get on.
        runner.load(lambda phase, done, total: commands.answer_pings())
        commands.send(RankLoaded())
        reads = AdapterReads(runner)
        while (command := commands.next()) is not None:
            match command:
                case JoinRanks(place):
                    runner.join(place)
                    commands.send(RankSizes(**asdict(runner.size())))
                case ReadRankAdapter(adapter):
                    reads.begin(adapter).add_done_callback(partial(commands.tell_read, adapter.number))
                case LoadRankAdapter(number):
                    commands.send(RankAdapterLoaded(reads.load(number)))
                case DropRankAdapter(number):
                    reads.drop(number)
                case Shutdown():
                    return
                case _:
                    _obey(runner, command)


def _obey(runner: RankRunner, command: Message) -> None:
    match command:
        case AllocateRank(num_blocks, num_host_blocks):
            runner.allocate(num_blocks, num_host_blocks)
        case RankCopies(to_host, to_pool, within):
            runner.copy_blocks(BlockCopies(to_host, to_pool, within))
        case RankStep():
            runner.follow(followed_steps(command))
        case _:
            raise ValueError(f"{type(command).__name__} is no command to a rank")


class _Commands:
    """What rank 0 sends, and answers to it. Pings are answered when they are read, all else is kept in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = FrameReader()
        self._pending: deque[Message] = deque()
        self._sending = threading.Lock()  # Threads that read adapters tell it too.

    def next(self) -> Message | None:
        """Wait for the next command; None: rank 0 is gone."""
        while not self._pending and self._read():
            pass
        return self._pending.popleft() if self._pending else None

    def send(self, answer: Message) -> None:
        """Send an answer."""
        with self._sending:
            self._socket.sendall(frame(answer))

    def tell_read(self, number: int, read: Future[Callable[[], None]]) -> None:
        """Say that an adapter was read, or why not."""
        with suppress(OSError):  # Rank 0 is gone: the main thread finds it.
            self.send(RankAdapterRead(number, why_not(read.result)))

    def answer_pings(self) -> None:
        """Answer those that are there."""
        with suppress(BlockingIOError):
            while self._read(socket.MSG_DONTWAIT):
                pass

    def _read(self, flags: int = 0) -> bool:
        """Read once; return False at the end of the stream."""
        data = self._socket.recv(_CHUNK, flags)
        for message in self._frames.feed(data):
            if isinstance(message, Ping):
                self.send(Pong(message.number))
            else:
                self._pending.append(message)
        return bool(data)


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    logging.shutdown()
    os._exit(status)  # With torch loaded, the interpreter takes seconds to shut down.
