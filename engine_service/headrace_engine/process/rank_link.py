"""Rank 0's end of the connection to another rank's process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TypeVar

from headrace_engine.errors import Internal
from headrace_engine.ipc.frames import BadMessage, FrameReader, Message, frame
from headrace_engine.ipc.messages import CoreFailed
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.ipc.ranks import RankCommand, RankPlan
from headrace_engine.process.ends import manner
from headrace_engine.process.parent import spawn

_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.process.rank")
_CHUNK = 1 << 16
_GRACE = 1.0
"""Seconds that a rank may take to end; then it is killed, which frees what it holds just as well."""

Answer = TypeVar("Answer", bound=Message)


class RankLink:
    """Another rank's process, started at once with its plan."""

    def __init__(self, number: int, plan: CorePlan) -> None:
        self._number = number
        self._process, self._socket = spawn(_PROGRAM)
        self._frames = FrameReader()
        self._received: deque[Message] = deque()
        # Held to read: the thread that watches the ranks reads what a rank said last, the core's thread its answers.
        self._reading = threading.Lock()
        self.send(RankPlan(plan, number))

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
            Internal: the rank is gone.
        """
        self.send_frame(frame(command))

    def send_frame(self, data: bytes) -> None:
        """Send an encoded command; see `send`."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Internal(self.last_words()) from error

    def expect(self, kind: type[Answer]) -> Answer:
        """Wait for an answer of this kind.

        Raises:
            HeadraceError: the rank failed, or ended.
        """
        with self._reading:
            while not self._received and self._read():
                pass
            answer = self._received.popleft() if self._received else None
        if isinstance(answer, CoreFailed):
            raise answer.error()
        if not isinstance(answer, kind):
            raise Internal(self.last_words())
        return answer

    def last_words(self) -> str:
        """Return how the rank ended, which closed its connection."""
        with self._reading, suppress(BadMessage):
            while self._read():
                pass
        failed = [answer.message for answer in self._received if isinstance(answer, CoreFailed)]
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        what = f"rank {self._number} of the model {manner(self._process.returncode)}"
        return f"{what}: {failed[0]}" if failed else what

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

    def _read(self) -> bool:
        """Read once, and wait for it; return False at the end of the stream."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            return False
        self._received += self._frames.feed(data)
        return bool(data)
