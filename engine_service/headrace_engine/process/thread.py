"""Runs a core in a thread of this process, behind the same interface as a core process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from headrace_proto.pure.daemon_thread import in_daemon

from headrace_engine.core.link import LinkClosed
from headrace_engine.errors import in_words
from headrace_engine.ipc.commands import CoreCommand, Ping, Shutdown
from headrace_engine.ipc.messages import CoreMessage, Pong
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process.run import RunnerFactory, make_runner, run_core

_Argument = TypeVar("_Argument")

_JOIN_LIMIT = 60.0
"""Seconds that a step may take to end when its core is closed; after that, its thread is abandoned."""

_log = logging.getLogger(__name__)


def launch_thread(
    plan: CorePlan,
    receive: Callable[[CoreMessage], None],
    lost: Callable[[str], None],
    *,
    make: RunnerFactory = make_runner,
) -> ThreadLink:
    """Start a core in a thread; a `CoreLauncher`. A thread cannot be killed, so `close` waits for its step to end."""
    return ThreadLink(partial(run_core, plan, make=make), receive, lost)


class ThreadLink:
    """A `CoreLink` to a core in a thread, which it starts."""

    def __init__(
        self, run: Callable[[QueueLink], bool], receive: Callable[[CoreMessage], None], lost: Callable[[str], None]
    ) -> None:
        self._lost = lost
        self._closing = False
        self._link = QueueLink(asyncio.get_running_loop(), receive)
        self._thread = threading.Thread(target=self._run, args=(run,), name="headrace-core", daemon=True)
        self._thread.start()

    def send(self, message: CoreCommand) -> None:
        """See `CoreLink.send`."""
        self._link.put(message)

    def kill(self) -> str:
        """See `CoreLink.kill`."""
        self._link.cut()
        return "was cut off (a thread of this process cannot be killed; the next core begins when it has ended)"

    async def close(self) -> None:
        """See `CoreLink.close`."""
        self._closing = True
        self.send(Shutdown())
        await in_daemon(self._thread.join, _JOIN_LIMIT)
        if self._thread.is_alive():
            _log.error("core_thread_left: its step did not end within %g s", _JOIN_LIMIT)

    def _run(self, run: Callable[[QueueLink], bool]) -> None:
        try:
            how = "ended" if run(self._link) else "failed"
        except BaseException as error:  # User code may call exit: that must end this thread alone, and be reported.
            how = f"failed: {in_words(error)}"
        try:
            self._link.call(self._end, f"the core {how}")
        except LinkClosed:
            return  # The event loop is gone: there is nothing to report to.

    def _end(self, reason: str) -> None:
        if not self._closing:
            self._lost(reason)


class QueueLink:
    """The core's `Link` to a front half on an event loop of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[CoreMessage], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._commands: list[CoreCommand] = []
        # Guards `_commands`: the event loop adds, the core's thread takes, and the one that answers pings takes these.
        self._news = threading.Condition()
        self._is_cut = False  # Only ever set, so that all of them read it without the lock.

    def put(self, message: CoreCommand) -> None:
        """Queue a command for the core."""
        with self._news:
            self._commands.append(message)
            self._news.notify()

    def receive(self, block: bool) -> list[CoreCommand]:
        """See `Link.receive`."""
        with self._news:
            if block:
                self._news.wait_for(lambda: self._commands)
            commands, self._commands = self._commands, []
        self._check()
        return commands

    def answer(self, progress: int) -> None:
        """See `PingedLink.answer`."""
        self._check()
        with self._news:
            pings = [command for command in self._commands if isinstance(command, Ping)]
            if pings:
                self._commands = [command for command in self._commands if not isinstance(command, Ping)]
        if pings:
            self.send(*(Pong(ping.number, progress) for ping in pings))

    def send(self, *messages: CoreMessage) -> None:
        """See `Link.send`."""
        self._check()
        self.call(self._receive_all, messages)

    def cut(self) -> None:
        """See `PingedLink.cut`. Sending fails from here on as well."""
        self._is_cut = True
        self.put(Shutdown())  # Wake the core if it is waiting for a command.

    def call(self, function: Callable[[_Argument], None], argument: _Argument) -> None:
        """Call a function on the event loop's thread.

        Raises:
            LinkClosed: the event loop is closed.
        """
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError as error:
            raise LinkClosed from error

    def _receive_all(self, messages: Iterable[CoreMessage]) -> None:
        for message in messages:
            self._receive(message)

    def _check(self) -> None:
        if self._is_cut:
            raise LinkClosed
