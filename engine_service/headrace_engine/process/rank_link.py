"""Rank 0's end of the connection to another rank's process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from headrace_engine.ipc.commands import Ping
from headrace_engine.ipc.frames import BadMessage, FrameReader, Message, frame
from headrace_engine.ipc.messages import CoreFailed, Pong
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.ranks import RankAdapterRead, RankCommand, RankLoaded, RankPlan
from headrace_engine.process.ends import manner
from headrace_engine.process.parent import spawn

_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.process.rank")
_CHUNK = 1 << 16
_GRACE = 1.0
"""Seconds that a rank may take to end; then it is killed, which frees what it holds just as well."""
_LOOK = 0.01
"""Seconds between two looks for what a rank says while it reads an adapter."""
_FAULT = "ENGINE_FAULT"
_CPUCLOCK_SCHED = 2
"""Of the clocks that Linux has for a process, that of the time which its threads have run."""

Answer = TypeVar("Answer", bound=Message)


class RankLink:
    """Another rank's process, started at once with its plan.

    Attributes:
        number: of the rank.
        loaded: it has said that it has its weights.
    """

    def __init__(self, number: int, plan: CorePlan) -> None:
        self.number = number
        self.loaded = False
        self._process, self._socket = spawn(_PROGRAM)
        self._frames = FrameReader()
        self._received: deque[Message] = deque()
        # Held to read: the thread that watches the ranks reads what a rank said last, the core's thread its answers.
        self._reading = threading.Lock()
        # Held to send: the former sends pings, the latter commands.
        self._sending = threading.Lock()
        self._asked = self._answered = 0
        self._reads: dict[int, str] = {}
        try:
            self.send(RankPlan(plan, number))
        except BaseException:
            self.kill()
            self.end()
            raise

    @property
    def descriptor(self) -> int:
        """Number of this end of its socket."""
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._process.pid

    def send(self, command: RankCommand) -> None:
        """Send a command.

        Raises:
            HeadraceError: the rank is gone.
        """
        self.send_frame(frame(command))

    def send_frame(self, data: bytes) -> None:
        """Send an encoded command; see `send`."""
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise self.failure().error() from error

    @property
    def processor_time(self) -> int:
        """Time that the process has computed, in some unit; 0 if it has ended.

        While it loads, that of all its threads: some read and pack for the main thread. Then that of the main thread
        alone, which takes part in all that is computed: threads of libraries may poll for ever.
        """
        try:
            if self.loaded:
                return _main_thread_ticks(self.pid)
            return time.clock_gettime_ns((~self.pid << 3) | _CPUCLOCK_SCHED)
        except OSError:
            return 0

    def ping(self) -> bool:
        """Return True if the rank has answered all pings, and send it the next one then. Does not wait.

        It answers between two commands, and between two tensors that it loads.
        """
        self._listen()
        if self._answered < self._asked or not self._sending.acquire(blocking=False):
            return False  # It computes, or does not take the command that is being sent.
        try:
            self._socket.send(frame(Ping(self._asked + 1)), socket.MSG_DONTWAIT)
            self._asked += 1
        except OSError:
            return False
        finally:
            self._sending.release()
        return True

    def expect(self, kind: type[Answer]) -> Answer:
        """Wait for an answer of this kind.

        Raises:
            HeadraceError: the rank failed, or ended.
        """
        with self._reading:
            while not self._received and self._read():
                pass
            answer = self._received[0] if self._received else None
            if isinstance(answer, CoreFailed):
                raise answer.error()  # It stays, for `failure`.
            if answer is not None:
                self._received.popleft()
        if not isinstance(answer, kind):
            raise self.failure().error()
        return answer

    def adapter_read(self, number: int) -> str:
        """Wait until the rank has read an adapter; return why it could not, or "". In a thread of its own.

        Raises:
            HeadraceError: the rank is gone.
        """
        while number not in self._reads:
            if self._process.poll() is not None:
                raise self.failure().error()
            self._listen()
            time.sleep(_LOOK)
        return self._reads.pop(number)

    def failure(self) -> CoreFailed:
        """Return why the rank ended, which closed its connection: what it said itself, or how it ended."""
        with self._reading:
            while self._read():
                pass
        failed = next((answer for answer in self._received if isinstance(answer, CoreFailed)), None)
        if failed is not None and failed.reason != _FAULT:
            return failed
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        what = f"rank {self.number} of the model {manner(self._process.returncode)}"
        return CoreFailed(_FAULT, what if failed is None else f"{what}: {failed.message}")

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()

    def end(self) -> None:
        """Wait for the process to end, and kill it if that takes too long."""
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        self._socket.close()

    def _listen(self) -> None:
        """Read what is there, unless the core's thread waits for an answer, and so reads all."""
        if self._reading.acquire(blocking=False):
            try:
                self._read(socket.MSG_DONTWAIT)
            finally:
                self._reading.release()

    def _read(self, flags: int = 0) -> bool:
        """Read once, and wait for it unless the flags say otherwise; return False if there is nothing more.

        A rank that sends what is no message is killed: nothing that follows it could be understood.
        """
        try:
            data = self._socket.recv(_CHUNK, flags)
        except OSError:
            return False
        try:
            for message in self._frames.feed(data):
                self._take(message)
        except BadMessage as error:
            self._received.append(CoreFailed(_FAULT, f"it sent an invalid message ({error})"))
            self.kill()
            return False
        return bool(data)

    def _take(self, message: Message) -> None:
        if isinstance(message, Pong):
            self._answered = message.number
            return
        if isinstance(message, RankAdapterRead):
            self._reads[message.number] = message.error
            return
        self.loaded |= isinstance(message, RankLoaded)
        self._received.append(message)


def _main_thread_ticks(pid: int) -> int:
    """Return the time that a process's main thread has run, by itself and in the kernel, in the kernel's ticks."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
