"""Times of each native call of a step: recorded by the computing process, in a file that others read.

    HEADRACE_BENCH_CALLS=FILE python -m bench.cpu.call_record [arguments of headrace-engine]

is headrace-engine with cores that keep such a record, which costs a step two reads of the clock.
"""

from __future__ import annotations

import mmap
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from headrace_engine.native.abi import Batch
from headrace_engine.native.program import Program
from headrace_engine.process import launch_process
from headrace_engine.process import main as core_main
from headrace_engine.service.program.main import main as service_main

from bench.common.environment import CALLS, given, variable_set

RECORDED_ENGINE = ("-m", "bench.cpu.call_record")
"""Python's arguments for the engine service with such cores, from the root of the repository."""

CORE_PROGRAM = (sys.executable, *RECORDED_ENGINE, "core")
"""Command of a core that keeps the record, for `launch_process`."""

_COUNT = struct.Struct("<Q")
_CALL = struct.Struct("<dd")
_ROOM = 1 << 14
"""Number of calls kept; later ones overwrite the oldest."""

Call = tuple[float, float]
"""Begin and end in seconds of CLOCK_MONOTONIC, as of `time.perf_counter`."""


class Record:
    """The newest native calls of all processes that share this record, of which one computes at a time."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._ring = mmap.mmap(file.fileno(), 0)

    def calls(self, count: int) -> list[Call]:
        """Return the newest calls, oldest first."""
        (end,) = _COUNT.unpack_from(self._ring)
        return [_CALL.unpack_from(self._ring, self._place(number)) for number in range(max(0, end - count), end)]

    def keep(self) -> None:
        """Record the calls of this process from now on."""
        run, clock = Program.run, time.perf_counter

        def recorded(program: Program, batch: Batch) -> None:
            began = clock()
            run(program, batch)
            self._add(began, clock())

        Program.run = recorded  # type: ignore[assignment, method-assign]

    def _add(self, began: float, ended: float) -> None:
        (number,) = _COUNT.unpack_from(self._ring)
        _CALL.pack_into(self._ring, self._place(number), began, ended)
        _COUNT.pack_into(self._ring, 0, number + 1)

    def _place(self, number: int) -> int:
        return _COUNT.size + number % _ROOM * _CALL.size


@contextmanager
def new_record() -> Iterator[Record]:
    """Create an empty record for processes that are started within this context."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(_COUNT.size + _ROOM * _CALL.size)
        with variable_set(CALLS, file.name):
            yield Record(file.name)


def main() -> int:
    """Run the service; with only "core" and a number, a core on the socket of that number."""
    if sys.argv[1:2] == ["core"]:
        Record(given(CALLS)).keep()
        return core_main(int(sys.argv[2]))
    return service_main(launcher=partial(launch_process, program=CORE_PROGRAM))


if __name__ == "__main__":
    sys.exit(main())
