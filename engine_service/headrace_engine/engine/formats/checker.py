"""Checks the response formats of one model's requests in a process of its own.

Compiling a format may take the parser's library minutes or gigabytes, or crash it; in its own process
that affects only the request.
"""

from __future__ import annotations

import signal
import sys
from threading import Lock

from headrace_engine.engine.formats.frames import MAX_MEMORY, MAX_SECONDS, Order, Verdict, Words
from headrace_engine.engine.work.side_process import SideProcess
from headrace_engine.errors import Internal, InvalidArgument, ResourceExhausted, Unavailable
from headrace_engine.request_parts import ResponseFormat

_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.engine.formats.process")
_FIELD = "config.response_format"


class FormatChecker:
    """Checks formats. Blocking; safe to call from several threads, which take turns.

    It owns its process, which starts with the first format, is replaced after a crash, and ends with this object.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        self._turn = Lock()
        self._process: SideProcess | None = None
        self._closed = False

    def check(self, wanted: ResponseFormat) -> Verdict:
        """Return the grammar of a format, with its cost.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: it cannot be compiled within bounds.
            Unavailable: the checker was closed.
            ResourceExhausted: the process was killed from outside, each time.
            Internal: the process cannot be started.
        """
        with self._turn:
            return self._answer(wanted)

    def close(self) -> None:
        """End the process; a check in progress fails, and so do later ones. Safe to call from any thread."""
        self._closed = True
        if self._process is not None:
            self._process.kill()  # Unblocks the thread that holds the lock and waits for an answer.
        with self._turn:
            self._end_process()

    def _answer(self, wanted: ResponseFormat, attempts: int = 2) -> Verdict:
        """Return the verdict. If the process is killed from outside, such as for lack of memory, try once more."""
        answer = self._attempt(wanted)
        if isinstance(answer, Verdict):
            if answer.refusal is not None:
                raise answer.refusal.error()
            return answer
        if answer == -signal.SIGKILL:  # None of its own limits ends it this way: the format is not to blame.
            if attempts > 1:
                return self._answer(wanted, attempts - 1)
            raise _killed()
        raise InvalidArgument.field(_FIELD, _why(answer), reason="BAD_RESPONSE_FORMAT")

    def _attempt(self, wanted: ResponseFormat) -> Verdict | int:
        """Return the verdict, or the exit status of the process."""
        process = None
        try:
            process = self._begun()
            return process.ask(Order(wanted), Verdict)
        except UnicodeEncodeError as error:
            text = f"holds half of a surrogate pair, which is not valid text: {error.object[error.start]!r}"
            raise InvalidArgument.field(_FIELD, text, reason="BAD_RESPONSE_FORMAT") from error
        except (OSError, EOFError):
            status = self._ended()
        if process is None and status != -signal.SIGKILL:
            raise Internal(f"the process that checks response formats ended with status {status} at its start")
        return status

    def _begun(self) -> SideProcess:
        if self._closed:
            raise _closed()
        if self._process is None or self._process.has_ended:  # Between formats, so that none is to blame.
            self._process = SideProcess(_PROGRAM, "checks response formats")
            if self._closed:  # Meanwhile: `close` may not have seen it, and waits for the turn.
                raise _closed()
            self._process.ask(self._words, Verdict)
        return self._process

    def _ended(self) -> int:
        process = self._process
        if self._closed or process is None:
            self._end_process()
            raise _closed()
        status = process.status
        self._end_process()
        return status

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _closed() -> Unavailable:
    return Unavailable("the response format cannot be checked: its model is being removed", retry_after=1.0)


def _killed() -> ResourceExhausted:
    text = "the process that checks response formats was killed twice: the engine's host may be out of memory"
    return ResourceExhausted(f"{text}. Try again in 1 s", retry_after=1.0)


def _why(status: int) -> str:
    if status == -signal.SIGPROF:
        return (
            f"cannot be compiled: it takes more than {MAX_SECONDS:.0f} s of processor time; use smaller numbers, and "
            "fewer alternatives and repetitions"
        )
    return (
        "cannot be compiled: it is nested or chained too deep, or takes more than "
        f"{MAX_MEMORY >> 20} MiB of memory (the process that tried it ended with status {status})"
    )
