"""The core's side of the connection between its process and the front half."""

from __future__ import annotations

import faulthandler
import signal
import socket
import threading
from contextlib import suppress
from typing import cast

from headrace_proto.pure.collecting import freeze_objects

from headrace_engine import child_logs
from headrace_engine.core.link import LinkClosed
from headrace_engine.ipc.commands import CoreCommand, Ping
from headrace_engine.ipc.frames import FrameReader, frame
from headrace_engine.ipc.messages import CoreMessage, Pong
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process.ends import end_with
from headrace_engine.process.run import RunnerFactory, import_backend, make_runner, run_core
from headrace_engine.process.vocabulary import BegunVocabulary

_CHUNK = 1 << 18
_ORPHAN_LIMIT = 1.0
"""Seconds within which a core must end once its front half is gone, whatever its device is doing."""


class SocketLink:
    """A core's link over its end of a socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = FrameReader()
        self._pending: list[CoreCommand] = []
        # Two threads use the link: the core's, and beside its steps the one that answers pings. `_reading` guards
        # `_frames` and `_pending`; `_writing` keeps the bytes of one `send` together.
        self._reading, self._writing = threading.Lock(), threading.Lock()

    def receive_plan(self) -> CorePlan:
        """Return the first message.

        Raises:
            LinkClosed: the front half is gone.
            ValueError: the first message is not a plan.
        """
        plan, *self._pending = self.receive(block=True)
        if not isinstance(plan, CorePlan):
            raise ValueError(f"the first message to a core must be its plan, not {type(plan).__name__}")
        return plan

    def receive(self, block: bool) -> list[CoreCommand]:
        """See `Link.receive`."""
        with self._reading:
            commands, self._pending = self._pending, []
            try:
                while self._read(commands, 0 if block and not commands else socket.MSG_DONTWAIT):
                    pass
            except BlockingIOError:
                return commands
            except OSError as error:
                raise LinkClosed from error
        if commands:
            return commands  # The next call finds the end of the stream again.
        raise LinkClosed

    def send(self, *messages: CoreMessage) -> None:
        """See `Link.send`. Blocks while the front half is slow to read."""
        try:
            with self._writing:
                self._socket.sendall(b"".join(map(frame, messages)))
        except OSError as error:
            raise LinkClosed from error

    def answer(self, progress: int) -> None:
        """See `PingedLink.answer`. Leaves the end of the stream to the core's own thread, and to `_watch`."""
        if not self._reading.acquire(blocking=False):
            return  # The core's own thread is receiving, and will answer.
        try:
            with suppress(OSError):
                while self._read(self._pending, socket.MSG_DONTWAIT):
                    pass
            pings = [command for command in self._pending if isinstance(command, Ping)]
            self._pending = [command for command in self._pending if not isinstance(command, Ping)]
        finally:
            self._reading.release()
        if pings:
            self.send(*(Pong(ping.number, progress) for ping in pings))

    def cut(self) -> None:
        """See `PingedLink.cut`. What is sent still arrives."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def _read(self, commands: list[CoreCommand], flags: int) -> bool:
        """Read once and append the commands; return False at the end of the stream."""
        data = self._socket.recv(_CHUNK, flags)
        commands += (cast(CoreCommand, message) for message in self._frames.feed(data))
        return bool(data)


def main(
    descriptor: int,
    make: RunnerFactory = make_runner,
    orphan_limit: float = _ORPHAN_LIMIT,
    *,
    early: str | None = None,
    model: str = "",
) -> int:
    """Run a core on an inherited socket until it is shut down or orphaned; return the exit status of the process.

    Args:
        early: the backend that the plan will most likely name, imported before the plan arrives; None: import none.
        model: the path that it will most likely name, whose vocabulary is built in advance; "": build none.
    """
    # The service decides when a core ends: a signal to the process group must not end it before requests are drained.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    child_logs.configure("core")
    with socket.socket(fileno=descriptor) as connection:
        ended = threading.Event()
        end_with(descriptor, ended, orphan_limit)
        link = SocketLink(connection)
        if early is not None:
            import_backend(early)
        begun = BegunVocabulary.at(model) if model else None
        try:
            plan = link.receive_plan()
        except LinkClosed:
            return 0
        succeeded = run_core(plan, link, make, begun, started=freeze_objects)
        # Everything is freed: the watch on the front half need not end this process any more.
        ended.set()
    return 0 if succeeded else 1
