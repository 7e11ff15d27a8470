"""Checks the response formats of one model's requests in a process of its own.

Compiling a format may take the parser's library minutes or gigabytes, or crash it; in its own process
that affects only the request.
"""

from __future__ import annotations

import signal

from headrace_engine.engine.formats.frames import MAX_MEMORY, MAX_SECONDS, Order, Verdict, Words
from headrace_engine.engine.work.side_worker import Ended, SideWorker, half_a_pair
from headrace_engine.errors import Internal, InvalidArgument, ResourceExhausted, Unavailable
from headrace_engine.request_parts import ResponseFormat

_MODULE = "headrace_engine.engine.formats.process"
_FIELD = "config.response_format"


class FormatChecker:
    """Checks formats. Blocking; safe to call from several threads, which take turns."""

    def __init__(self, words: Words) -> None:
        self._worker = SideWorker(_MODULE, "checks response formats", words, Verdict, _closed)

    def check(self, wanted: ResponseFormat) -> Verdict:
        """Return the grammar of a format, with its cost.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: it cannot be compiled within bounds.
            Unavailable: the checker was closed.
            ResourceExhausted: the process was killed from outside, each time.
            Internal: the process cannot be started.
        """
        verdict = self._verdict(wanted)
        if verdict.refusal is not None:
            raise verdict.refusal.error()
        return verdict

    def close(self) -> None:
        """End the process; a check in progress fails, and so do later ones. Safe to call from any thread."""
        self._worker.close()

    def _verdict(self, wanted: ResponseFormat, attempts: int = 2) -> Verdict:
        """Return the verdict. If the process is killed from outside, such as for lack of memory, try once more."""
        try:
            return self._worker.ask(Order(wanted))
        except UnicodeEncodeError as error:
            raise InvalidArgument.field(_FIELD, half_a_pair(error), reason="BAD_RESPONSE_FORMAT") from error
        except Ended as end:
            killed = end.status == -signal.SIGKILL  # None of its own limits ends it this way.
            if end.at_start and not killed:
                text = f"the process that checks response formats ended with status {end.status} at its start"
                raise Internal(text) from None
            if not killed:
                raise InvalidArgument.field(_FIELD, _why(end.status), reason="BAD_RESPONSE_FORMAT") from None
            if attempts == 1:
                raise _killed() from None
        return self._verdict(wanted, attempts - 1)


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
