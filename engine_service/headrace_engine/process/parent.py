"""The front half's side of the connection to a core process.

The front half owns the process: it starts it, kills it, and waits for its end. Sequences sent over the link belong to
the core until it reports their end, or until `lost` is called: then they all belong to the front half again.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from headrace_proto.pure.daemon_thread import in_daemon

from headrace_engine.ipc.commands import CoreCommand, Shutdown
from headrace_engine.ipc.frames import BadMessage, FrameReader, frame
from headrace_engine.ipc.messages import CoreMessage
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process.ends import manner

_CHUNK = 1 << 18
_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.process")
_STDERR = 2
_GRACE = 10.0
_CLOSE_GRACE = 1.0
_KILL_GRACE = 10.0
"""Seconds to wait for the end of a killed process: a hanging driver may keep it forever."""


def launch_process(
    plan: CorePlan,
    receive: Callable[[CoreMessage], None],
    lost: Callable[[str], None],
    *,
    program: Sequence[str] = _PROGRAM,
    grace: float = _GRACE,
    close_grace: float = _CLOSE_GRACE,
) -> ProcessLink:
    """Start a core in a process of its own; a `CoreLauncher`.

    Args:
        program: the command line of the core, to which the number of its socket is added.
        grace: seconds that a core may take to end after it hung up; then it is killed.
        close_grace: seconds after a Shutdown; shorter, since killing it frees its resources just as well.
    """
    process, ours = spawn(program)
    link = ProcessLink(process, ours, receive, lost, grace, close_grace)
    link.send(plan)
    return link


class EarlyLauncher:
    """A `CoreLauncher` that starts its first process immediately, before there is a plan.

    Until it gets a plan, the process imports and builds what it will need. If none comes, it ends with this process.

    Args:
        backend: the backend to import, as in `CorePlan.backend`.
        model: path of the model that it will most likely run; "": not known.
        program: see `launch_process`.
    """

    def __init__(self, backend: str, model: str = "", *, program: Sequence[str] = _PROGRAM) -> None:
        self._program = program
        self._early: tuple[subprocess.Popen[bytes], socket.socket] | None = spawn(
            program, backend, *filter(None, [model])
        )

    @property
    def early(self) -> int | None:
        """Pid of the process that waits for a plan; None once it has one."""
        return None if self._early is None else self._early[0].pid

    def __call__(
        self, plan: CorePlan, receive: Callable[[CoreMessage], None], lost: Callable[[str], None]
    ) -> ProcessLink:
        """Give the plan to the first process; start a new one for later plans, or if the first has died."""
        early, self._early = self._early, None
        if early is not None and early[0].poll() is not None:
            early[1].close()
            early = None
        if early is None:
            return launch_process(plan, receive, lost, program=self._program)
        link = ProcessLink(*early, receive, lost, _GRACE, _CLOSE_GRACE)
        link.send(plan)
        return link


def spawn(program: Sequence[str], *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process of a core, or of another rank; return it and our end of its socket."""
    ours, theirs = socket.socketpair()
    # Ours to close once the child has its copy: only then does the child's end show as the end of the stream.
    with theirs:
        # A session of its own shields it from the terminal's signals. Its output must not mix with the answers on
        # standard output. Spawned, not forked: a forked child would inherit locks and device handles in use.
        try:
            process = subprocess.Popen(
                [*program, str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    return process, ours


class ProcessLink:
    """A `CoreLink` to a child process: reads and writes when the event loop finds the socket ready; never blocks."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        receive: Callable[[CoreMessage], None],
        lost: Callable[[str], None],
        grace: float,
        close_grace: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._socket = connection
        self._receive = receive
        self._lost = lost
        self._grace = grace
        self._close_grace = close_grace
        self._frames = FrameReader()
        self._outbox = bytearray()
        self._open = True
        self._closing = False
        self._report: asyncio.Task[None] | None = None
        connection.setblocking(False)
        self._loop.add_reader(connection, self._read)

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._process.pid

    def send(self, message: CoreCommand) -> None:
        """See `CoreLink.send`."""
        if self._open:
            self._outbox += frame(message)
            self._write()

    def kill(self) -> str:
        """See `CoreLink.kill`."""
        # A signal only: `_read` then finds the end of the stream, and reports the loss as any other.
        self._process.kill()
        return "was killed"

    async def close(self) -> None:
        """See `CoreLink.close`."""
        if not self._closing:
            self._closing = True
            self.send(Shutdown())
        # The socket is closed after the process has ended, so that its last messages are read.
        await in_daemon(self._wait, self._close_grace)
        self._hang_up()
        if self._report is not None:
            await self._report

    def _write(self) -> None:
        """Send what the socket accepts; the event loop calls again when it accepts more."""
        try:
            sent = self._socket.send(self._outbox)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._outbox)  # The core is gone; `_read` will find the end of the stream.
        del self._outbox[:sent]
        if self._outbox:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # The core died with commands unread.
        if not data:
            self._end("closed its connection")
            return
        try:
            for message in self._frames.feed(data):
                self._receive(cast(CoreMessage, message))
        except BadMessage as error:
            self._end(f"sent an invalid message ({error})")

    def _end(self, what: str) -> None:
        """Close the link to a core that failed, and report its loss once the process has ended."""
        self._hang_up()
        if not self._closing:
            self._report = self._loop.create_task(self._report_loss(what))

    async def _report_loss(self, what: str) -> None:
        await in_daemon(self._wait, self._grace)
        if not self._closing:
            self._lost(f"the core {what} and {manner(self._process.returncode)}")

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _wait(self, grace: float) -> None:
        """Wait for the process to end, and kill it if that takes too long."""
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_GRACE)
