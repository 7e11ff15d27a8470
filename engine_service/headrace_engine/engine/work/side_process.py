"""Processes beside the engine, for work that may loop, fill the memory or crash: there it costs who asked for it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from headrace_engine import child_logs
from headrace_engine.errors import Internal

ANSWER_SECONDS = 60.0
"""Seconds for an answer, by the clock of the wall: beyond what the process bounds itself, it was stopped or hangs."""

_STDERR = 2
_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()

_Message = TypeVar("_Message")


def write(stream: BinaryIO, message: Any) -> None:
    """Send a message, a dataclass, as a frame of MessagePack.

    Raises:
        OSError: the other side is gone.
        UnicodeEncodeError: it holds a text that is none.
    """
    data = _ENCODER.encode(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read(stream: BinaryIO, kind: type[_Message]) -> _Message:
    """Return the next message.

    Raises:
        EOFError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return msgspec.msgpack.decode(_exactly(stream, length), type=kind)


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


class SideProcess:
    """A process that runs a program of ours, and the socket to it. It ends with this object.

    Args:
        program: the command; it is given the number of a descriptor besides.
        task: what the process does, in words.
    """

    def __init__(self, program: tuple[str, ...], task: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A session of its own keeps the terminal's signals from it. What it prints is no answer.
                self._process = subprocess.Popen(
                    [*program, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise Internal(f"the process that {task} cannot be started: {error}") from error
        self._socket = ours
        self._stream = cast(BinaryIO, ours.makefile("rwb"))
        self._owner = os.getpid()
        self.end = weakref.finalize(self, _end, self._owner, self._process, ours, self._stream)

    @property
    def has_ended(self) -> bool:
        """Whether it is gone: where memory runs out, the system ends it before others."""
        return self._process.poll() is not None

    @property
    def status(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait()

    def ask(self, message: Any, kind: type[_Message]) -> _Message:
        """Return its answer.

        Raises:
            OSError, EOFError: it ended, or was ended since its answer did not come.
            UnicodeEncodeError: the message holds a text that is none.
        """
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            write(self._stream, message)
            return read(self._stream, kind)
        except TimeoutError:
            self.kill()
            raise

    def kill(self) -> None:
        """Let it end, whatever it does; from any thread."""
        if os.getpid() == self._owner:
            self._process.kill()


def _end(owner: int, process: subprocess.Popen[bytes], connection: socket.socket, stream: BinaryIO) -> None:
    """Let go of a process. A fork of the one that started it has nothing to end."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    with connection, suppress(OSError):  # What was not sent cannot be sent any more.
        stream.close()


def serve(name: str, descriptor: int, max_memory: int, answers: Callable[[BinaryIO], None]) -> None:
    """Answer in such a process until the engine hangs up, within bounds that the system keeps.

    Args:
        name: what the process is, for the log.
        max_memory: bytes of address space.
        answers: reads and writes messages, for ever.
    """
    child_logs.configure(name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The engine ends it.
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)  # Streams go first.
    with suppress(OSError):  # Where memory runs out, this process goes before others.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with (
        socket.socket(fileno=descriptor) as connection,
        connection.makefile("rwb") as file,
        suppress(OSError, EOFError),
    ):
        answers(cast(BinaryIO, file))


@contextmanager
def clock(seconds: float) -> Iterator[None]:
    """Let the system end the process with SIGPROF where what is within takes more processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
