"""When each native call of a step began and ended: kept by whoever computes, in a file that others read.

    HEADRACE_BENCH_CALLS=FILE python -m bench.cpu.call_record [arguments of headrace-engine]

is headrace-engine with cores that keep such a record. A record costs a step two looks at the clock.
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
"""The engine service with such cores: what Python runs from the root of the repository."""

CORE_PROGRAM = (sys.executable, *RECORDED_ENGINE, "core")
"""A core that keeps the record, for `launch_process`."""

_COUNT = struct.Struct("<Q")
_CALL = struct.Struct("<dd")
_ROOM = 1 << 14
"""Calls that are remembered; later ones overwrite them."""

Call = tuple[float, float]
"""Seconds of CLOCK_MONOTONIC, which `time.perf_counter` tells, at the beginning and at the end."""


class Record:
    """The newest native calls of all processes that keep this record, of which one computes at a time."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._room = mmap.mmap(file.fileno(), 0)

    def calls(self, count: int) -> list[Call]:
        """The newest ones, oldest first."""
        (end,) = _COUNT.unpack_from(self._room)
        return [_CALL.unpack_from(self._room, self._place(number)) for number in range(max(0, end - count), end)]

    def keep(self) -> None:
        """Keep the record of this process from now on."""
        run, clock = Program.run, time.perf_counter

        def recorded(program: Program, batch: Batch) -> None:
            began = clock()
            run(program, batch)
            self._add(began, clock())

        Program.run = recorded  # type: ignore[assignment, method-assign]

    def _add(self, began: float, ended: float) -> None:
        (number,) = _COUNT.unpack_from(self._room)
        _CALL.pack_into(self._room, self._place(number), began, ended)
        _COUNT.pack_into(self._room, 0, number + 1)

    def _place(self, number: int) -> int:
        return _COUNT.size + number % _ROOM * _CALL.size


@contextmanager
def new_record() -> Iterator[Record]:
    """An empty record, which processes find that are started meanwhile."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(_COUNT.size + _ROOM * _CALL.size)
        with variable_set(CALLS, file.name):
            yield Record(file.name)


def main() -> int:
    """The service; with "core" and a number alone, a core on the socket of that number."""
    if sys.argv[1:2] == ["core"]:
        Record(given(CALLS)).keep()
        return core_main(int(sys.argv[2]))
    return service_main(launcher=partial(launch_process, program=CORE_PROGRAM))


if __name__ == "__main__":
    sys.exit(main())
