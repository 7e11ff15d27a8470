"""Writes a model in our own format in a child process, which ends with its parent.

The plan goes to its standard input as one line of JSON, which then stays open; its answers are lines of JSON.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace_engine.errors import AlreadyExists, BadModel, HeadraceError, Internal, InvalidArgument
from headrace_engine.ipc.plans import SerializePlan
from headrace_engine.model_types import ModelPhase, ModelProgress

_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.process.serialize")
_INTERVAL = 0.1
"""Minimum seconds between two messages about progress."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A line of the child: its progress; or its end, with `written` or the kind and text of an error."""

    phase: ModelPhase | None = None
    done: int = 0
    total: int | None = None
    written: bool | None = None
    error: str = ""
    text: str = ""


_DECODER = msgspec.json.Decoder(_Answer)


async def run_serializer(plan: SerializePlan) -> AsyncGenerator[ModelProgress | bool, None]:
    """Yield progress, and at last whether files were written. Closing the generator ends the child.

    Raises:
        BadModel, AlreadyExists: as `backends.serialize.writer.serialize`.
        InvalidArgument: the files cannot be written; names output_dir.
        Internal: the child ended without an answer.
    """
    loop, answers = asyncio.get_running_loop(), asyncio.Queue[_Answer | None]()

    def report(answer: _Answer | None) -> None:
        with suppress(RuntimeError):  # The loop is closed: nobody listens any more.
            loop.call_soon_threadsafe(answers.put_nowait, answer)

    child = _Child(plan)
    threading.Thread(target=child.run, args=(report,), name="headrace-serialize", daemon=True).start()
    try:
        while (answer := await answers.get()) is not None:
            if answer.error:
                raise _error(answer)
            if answer.written is not None:
                yield answer.written
                return
            if answer.phase is not None:
                yield ModelProgress(answer.phase, answer.done, answer.total)
        raise Internal(f"the process that writes {plan.name} ended without an answer")
    finally:
        child.end()


class _Child:
    """The process that writes, started and read by one thread.

    Not asyncio's: uvloop forks, and gRPC's handlers of forks abort the child.
    """

    def __init__(self, plan: SerializePlan) -> None:
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def run(self, report: Callable[[_Answer | None], None]) -> None:
        """Start the process, and pass its answers on; None: there are no more."""
        pipe = subprocess.PIPE
        try:
            with subprocess.Popen(_PROGRAM, stdin=pipe, stdout=pipe, start_new_session=True) as process:
                with self._lock:
                    self._process = process
                    # `end` was called before there was a process.
                    if self._ended:
                        process.terminate()
                assert process.stdin is not None
                assert process.stdout is not None
                with suppress(BrokenPipeError):
                    process.stdin.write(msgspec.json.encode(self._plan) + b"\n")
                    process.stdin.flush()
                for line in process.stdout:
                    report(_DECODER.decode(line))
        finally:
            report(None)

    def end(self) -> None:
        """Have the process end; it deletes what it has not finished."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.terminate()


def _error(answer: _Answer) -> HeadraceError:
    kinds: dict[str, type[HeadraceError]] = {"BadModel": BadModel, "AlreadyExists": AlreadyExists}
    if answer.error in kinds:
        return kinds[answer.error](answer.text)
    if answer.error == "OSError":
        return InvalidArgument.field("output_dir", f"the model cannot be written: {answer.text}")
    return Internal(f"a model cannot be written: {answer.text}")


def main() -> None:
    """Read a plan, write the model, and say how it went."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=SerializePlan)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = _Answer(written=_write(plan))
    except HeadraceError as error:
        answer = _Answer(error=type(error).__name__, text=error.message)
    except OSError as error:
        answer = _Answer(error="OSError", text=error.strerror or str(error))
    _say(answer)


def _write(plan: SerializePlan) -> bool:
    from headrace_engine.backends.cpu.weights.storage import Storage
    from headrace_engine.backends.serialize.writer import serialize
    from headrace_engine.models.catalogue import open_model

    last = 0.0

    def progress(phase: ModelPhase, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _INTERVAL:
            last = time.monotonic()
            _say(_Answer(phase, done, total))

    files = open_model(
        plan.path, hub_only=plan.hub_only, file_prefix=plan.file_prefix, revision=plan.revision, hub=plan.hub
    )
    storage = Storage(plan.dtype, plan.weight_quant, plan.weight_quant_group_size)
    skip = plan.skip_if_exists
    return serialize(files, Path(plan.folder), plan.name, storage, skip_if_exists=skip, progress=progress)


def _say(answer: _Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    os.read(0, 1)  # Not the buffered stream, whose lock would be held at exit.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
