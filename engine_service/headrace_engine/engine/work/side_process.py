"""Side processes, for work that may loop, exhaust memory or crash: the failure then affects only the request."""

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
"""Seconds of wall time for an answer. The process limits its CPU time itself; past this it is stopped or hangs."""

_NICE = 5
_STDERR = 2
_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()

_Message = TypeVar("_Message")


def write(stream: BinaryIO, message: Any) -> None:
    """Send a message, a dataclass, as a frame of MessagePack.

    Raises:
        OSError: the other side is gone.
        UnicodeEncodeError: it contains half of a surrogate pair.
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
    """A child process that runs a program of ours, and the socket to it.

    Args:
        program: the command; the number of the socket's descriptor is appended.
        task: description of what the process does, for errors.
    """

    def __init__(self, program: tuple[str, ...], task: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A session of its own shields it from the terminal's signals. Its stdout is not used for answers.
                # This object owns the process: `end`, or its finalizer, kills and reaps it.
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
        """True if it is gone: when memory runs out, the kernel kills it before others."""
        return self._process.poll() is not None

    @property
    def status(self) -> int:
        """Exit status. Waits for the end of the process."""
        return self._process.wait()

    def ask(self, message: Any, kind: type[_Message]) -> _Message:
        """Send a message and return the answer.

        Raises:
            OSError, EOFError: the process ended, or was killed since its answer did not come.
                UnicodeEncodeError: the message contains half of a surrogate pair.
        """
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            write(self._stream, message)
            return read(self._stream, kind)
        except TimeoutError:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the process. Safe to call from any thread."""
        if os.getpid() == self._owner:
            self._process.kill()


def _end(owner: int, process: subprocess.Popen[bytes], connection: socket.socket, stream: BinaryIO) -> None:
    """Kill and reap a process. A fork of the process that started it does nothing."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    with connection, suppress(OSError):  # Unsent data is lost.
        stream.close()


def serve(name: str, descriptor: int, max_memory: int, answers: Callable[[BinaryIO], None]) -> None:
    """Run a side process until the engine hangs up, within limits that the kernel enforces.

    Args:
        name: name of the process, for the log.
        max_memory: maximum address space, in bytes.
        answers: reads and writes messages until the stream ends.
    """
    child_logs.configure(name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The engine ends it.
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _yield_to_streams()
    with suppress(OSError):  # When memory runs out, this process is killed first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with (
        socket.socket(fileno=descriptor) as connection,
        connection.makefile("rwb") as file,
        suppress(OSError, EOFError),
    ):
        answers(cast(BinaryIO, file))


def _yield_to_streams() -> None:
    """Lower the priority of this process, and of its session where the kernel schedules sessions as groups."""
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE), encoding="ascii")


@contextmanager
def clock(seconds: float) -> Iterator[None]:
    """Have the kernel end the process with SIGPROF if the block takes more than `seconds` of CPU time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
