"""Plants faults into the kernels, one at a time, and asserts that the tests catch each on the simulated device.

    make mutants

builds core_sim with each fault of the table and runs the test that must fail, in a process of its own. A fault counts
as caught if the test fails in the way that the table says. NAMES chooses faults. Exit status 1: one was not caught.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from headrace_engine.environment import NATIVE_VARIABLE
from native.build import ROOT, build_native
from native.mutants.build import Rebuild
from native.mutants.mutant import Mutant
from native.mutants.table import MUTANTS

LIMIT_S = 600.0
"""A test that has not ended by then has not caught a fault."""
PASSED, FAILED = int(pytest.ExitCode.OK), int(pytest.ExitCode.TESTS_FAILED)
_DIED = {-6: "abort", -11: "segmentation fault"}
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Run:
    """How a run of tests ended.

    Attributes:
        status: exit status; negative: the signal that ended it; None: it had to be killed.
        output: all that it printed.
    """

    status: int | None
    output: str

    def catches(self, mutant: Mutant) -> bool:
        """True if tests failed, and as expected."""
        failed = self.status == FAILED or self.status in _DIED
        return failed and re.search(mutant.seen, f"{self.ending}\n{self.output}", re.MULTILINE) is not None

    @property
    def ending(self) -> str:
        """In few words."""
        if self.status is None:
            return "no end"
        return _DIED.get(self.status, "passed" if self.status == PASSED else f"status {self.status}")


def run_test(libraries: Path, mutant: Mutant, log: Path) -> Run:
    """Run the test of a fault on a library."""
    # Nothing is captured: what the simulator says last would be lost.
    options = ["-x", "-q", "-s", "--tb=short", "-p", "no:cacheprovider", "-k", mutant.cases]
    test = str(ROOT / "tests" / "native" / mutant.test)
    process = _CONTEXT.Process(target=_test, args=(libraries, log, [*options, test]))
    process.start()
    process.join(LIMIT_S)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    return Run(status, log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")


def _test(libraries: Path, log: Path, arguments: list[str]) -> None:
    """Run pytest in this process, which ends with its status."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ[NATIVE_VARIABLE] = str(libraries)
    os.chdir(ROOT)
    sys.exit(int(pytest.main(arguments)))


def judge(rebuild: Rebuild, scratch: Path, mutant: Mutant) -> tuple[bool, str]:
    """Build a fault and test it; return whether it was caught, and a line about it."""
    folder = scratch / mutant.name
    rebuild.make(folder, mutant)
    run = run_test(folder, mutant, folder / "log")
    caught = run.catches(mutant)
    line = f"{'caught  ' if caught else 'SURVIVED'} {mutant.name} ({run.ending}): {mutant.breaks}"
    said = [text for text in run.output.splitlines() if text.startswith("cusim: ")]
    return caught, line if caught else "\n".join([line, *said, run.output[-3000:]])


def main() -> int:
    """Judge the chosen faults; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"of {', '.join(each.name for each in MUTANTS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults at a time")
    arguments = parser.parse_args()
    known = {each.name: each for each in MUTANTS}
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"there is no fault {unknown[0]}")
    chosen = [known[name] for name in arguments.names] or list(MUTANTS)
    return _judged(chosen, arguments.jobs)


def _judged(chosen: Sequence[Mutant], jobs: int) -> int:
    _CONTEXT.set_forkserver_preload(["numpy", "pytest", "torch"])
    rebuild = Rebuild(build_native())
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as threads:
        judged = []
        for caught, line in threads.map(partial(judge, rebuild, Path(name)), chosen):
            print(line, flush=True)
            judged.append(caught)
    print(f"{sum(judged)} of {len(judged)} faults caught")
    return int(not all(judged))


if __name__ == "__main__":
    sys.exit(main())
