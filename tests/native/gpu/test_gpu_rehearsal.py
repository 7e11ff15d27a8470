"""`make gpu-check` rehearsed on the simulated device, with what may go wrong on a card planted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headrace_engine.environment import NATIVE_VARIABLE
from native.build import build_native
from native.conftest import need_sim
from native.mutants.build import Rebuild
from native.mutants.mutant import Mutant
from support.sim.card_machine import only_needed

from bench.gpu.kernel_tests import FOLDERS
from bench.gpu.outcome import Kept, Outcome

HUNG = Mutant(
    "hung",
    "cuda/rows/norm.cu",
    "  Pack<T, Width> kept[Kept];\n",
    "  Pack<T, Width> kept[Kept];\n  for (volatile bool never = true; never;) {\n  }\n",
    "never ends",
    test="",
    seen="",
)
ILLEGAL = Mutant(
    "illegal",
    "cuda/rows/gather.cu",
    "to[i] = there ? from[i] : Chunk<Bytes>::nan();",
    "reinterpret_cast<Chunk<Bytes>*>(4096)[i] = from[i];",
    "writes where nothing is",
    test="",
    seen="",
)
WAIT_S = 600.0


@contextmanager
def started(
    libraries: Path, out: Path, *arguments: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The command on the simulated device."""
    whole = {**(env or {**os.environ, "PYTHONPATH": ""}), NATIVE_VARIABLE: str(libraries)}
    whole["PYTHONPATH"] = os.pathsep.join((whole["PYTHONPATH"], FOLDERS))
    options = ["--device", "sim", "--out", str(out), "--budget", "10000", *arguments]
    command = [sys.executable, "-m", "bench.gpu.check", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=whole, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def check(
    libraries: Path, out: Path, *arguments: str, env: dict[str, str] | None = None
) -> tuple[int, str, dict[str, Outcome]]:
    """Its exit status, all that it printed, and what it kept."""
    with started(libraries, out, *arguments, env=env) as process:
        printed, errors = process.communicate()
    return process.returncode, printed + errors, Kept(out).read()


def planted(tmp_path: Path, fault: Mutant) -> Path:
    """Folder of the library with a fault."""
    need_sim()
    Rebuild(build_native()).make(tmp_path / "faulty", fault)
    return tmp_path / "faulty"


@pytest.mark.soak
def test_a_hung_kernel_takes_its_own_step_alone(tmp_path: Path) -> None:
    steps = ("tests:test_norm.py", "tests:test_device_products.py", "ops:sampling")
    libraries = planted(tmp_path, HUNG)
    status, printed, kept = check(libraries, tmp_path / "out", *steps, "--limit", "tests:test_norm.py=20")
    assert status == 1, printed
    assert kept["tests:test_norm.py"].ending == "too long"
    assert kept["tests:test_norm.py"].error.endswith("killed after 20 s")
    assert kept["ops:sampling"].ending == "passed"
    assert "killed after 20 s" in printed


@pytest.mark.soak
def test_an_illegal_address_takes_its_own_step_alone(tmp_path: Path) -> None:
    status, printed, kept = check(planted(tmp_path, ILLEGAL), tmp_path / "out", "limits", "ops:rows", "ops:sampling")
    assert status == 1, printed
    endings = {name: outcome.ending for name, outcome in kept.items()}
    assert endings == dict.fromkeys(("environment", "library", "limits", "ops:sampling"), "passed") | {
        "ops:rows": "failed"
    }
    assert kept["ops:rows"].error.endswith("ended by SIGSEGV")
    assert "- ops:rows: **failed** (ended by SIGSEGV)" in (tmp_path / "out" / "page.md").read_text()


@pytest.mark.soak
def test_traces_of_failed_tests_are_short(tmp_path: Path) -> None:
    """Where every test fails, three say so in a few lines, and the file has more."""
    faulty = planted(tmp_path, Mutant(
        "wrong", "cuda/rows/gather.cu", "(there ? id : 0) * chunks;", "0 * chunks;", "gathers one row", "", ""
    ))  # fmt: skip
    status, printed, kept = check(faulty, tmp_path / "out", "tests:test_device_gates.py")
    assert status == 1
    outcome = kept["tests:test_device_gates.py"]
    assert (outcome.ending, outcome.figures["failed"]) == ("failed", 3)
    assert len(printed) < 4000
    assert len(outcome.error) > 1000


@pytest.mark.parametrize("package", ["torch", "pytest"])
def test_a_missing_package_is_one_error(libraries: Path, tmp_path: Path, package: str) -> None:
    need_sim()
    env = only_needed(tmp_path / "hook", without=(package,))
    status, printed, kept = check(libraries, tmp_path / "out", env=env)
    assert status == 1
    assert kept["environment"].ending == "failed"
    assert f"pip install {package}" in kept["environment"].error
    assert {outcome.ending for name, outcome in kept.items() if name != "environment"} == {"left out"}
    assert len(printed) < 6000


@pytest.mark.soak
def test_on_a_full_disk_outcomes_are_printed(libraries: Path, tmp_path: Path) -> None:
    """Nothing can be written where outcomes are, and earlier ones stay."""
    need_sim()
    out = tmp_path / "out"
    assert check(libraries, out, "limits")[0] == 0
    before = {path.name: path.read_text() for path in out.iterdir()}
    (out / ".writing").symlink_to("/dev/full")
    status, printed, _ = check(libraries, out, "limits", "ops:sampling")
    assert status == 1
    assert f"ops:sampling could not be written to {out}: No space left on device" in printed
    figures = next(json.loads(line) for line in printed.splitlines() if line.startswith('{"sample_rows'))
    assert set(figures) == {"sample_rows greedy", "sample_rows top_k, top_p"}
    assert {name: (out / name).read_text() for name in before} == before


@pytest.mark.soak
def test_a_killed_check_leaves_what_was_done_and_goes_on(libraries: Path, tmp_path: Path) -> None:
    need_sim()
    out = tmp_path / "out"
    with started(libraries, out, "limits", "ops:*") as process:
        wait_for(lambda: (out / "limits.step.json").exists(), "an outcome")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: children.read_text().split(), "the next step")
        (child,) = children.read_text().split()
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not Path(f"/proc/{child}").exists(), "the end of the step")
    assert {outcome.ending for outcome in Kept(out).read().values()} == {"passed"}
    status, printed, kept = check(libraries, out, "limits", "ops:sampling")
    assert status == 0, printed
    assert "passed before  limits\n" in printed
    assert kept["ops:sampling"].ending == "passed"
    assert "passed before" not in check(libraries, out, "limits", "--again")[1]


def test_steps_without_time_are_left_out(libraries: Path, tmp_path: Path) -> None:
    need_sim()
    status, printed, kept = check(libraries, tmp_path, "limits", "ops:rows", "--budget", "0")
    assert status == 75, printed
    assert {outcome.ending for outcome in kept.values()} == {"left out"}


def wait_for(event: object, what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not event():  # type: ignore[operator]
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.05)
