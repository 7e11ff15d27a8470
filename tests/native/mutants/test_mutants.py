"""Faults planted into the kernels are caught: a few in each run, all of them by `make mutants` and `make soak`."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from native.build import ROOT, build_native
from native.conftest import need_sim
from native.mutants.build import SOURCES, Rebuild
from native.mutants.mutant import Mutant
from native.mutants.run import Run, judge
from native.mutants.table import MUTANTS

SAMPLE = 5
"""Faults of each run."""

every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@every_mutant
def test_a_fault_replaces_what_is_there_once(mutant: Mutant) -> None:
    assert mutant.planted(SOURCES) != (SOURCES / mutant.file).read_text()


@every_mutant
def test_a_fault_names_a_test_that_is_there(mutant: Mutant) -> None:
    file, _, test = mutant.test.partition("::")
    assert re.search(rf"^def {test}\(", (ROOT / "tests" / "native" / file).read_text(), re.MULTILINE)


def test_faults_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_kernel_of_devices_has_a_fault() -> None:
    """By the source: whoever adds one plants a fault into it."""
    kernels = {path for path in (SOURCES / "cuda").rglob("*.cu") if "__global__" in path.read_text()}
    assert kernels <= {SOURCES / mutant.file for mutant in MUTANTS}


def test_an_ambiguous_replacement_is_refused() -> None:
    unclear = replace(MUTANTS[0], old="int")
    with pytest.raises(ValueError, match=rf"^{unclear.name}: {unclear.file} holds the replaced text \d+ times"):
        unclear.planted(SOURCES)


@pytest.mark.parametrize(
    ("run", "caught"),
    [
        (Run(1, "E   assert 3 == 4"), True),
        (Run(-6, "cusim: no race\nE   assert"), True),
        (Run(1, "E   NameError: x"), False),
        (Run(0, "E   assert"), False),
        (Run(4, "E   assert"), False),
        (Run(-9, "E   assert"), False),
        (Run(None, "E   assert"), False),
    ],
    ids=str,
)
def test_only_the_expected_failure_of_a_test_counts(run: Run, caught: bool) -> None:
    assert run.catches(replace(MUTANTS[0], seen=r"^E +assert")) is caught


def test_a_change_that_breaks_nothing_survives(tmp_path: Path) -> None:
    """So a fault is not caught by how it is built and run."""
    need_sim()
    harmless = Mutant(
        "harmless",
        "cuda/rows/gather.cu",
        "const int64_t row = blockIdx.x, id = args.ids[row];",
        "const int64_t row = blockIdx.x + 0, id = args.ids[row];",
        "nothing",
        "device/test_device_gates.py::test_gathers_rows_and_gives_nan_for_ids_that_are_not_there",
        seen="",
    )
    caught, line = judge(Rebuild(build_native()), tmp_path, harmless)
    assert not caught
    assert line.startswith("SURVIVED harmless (passed): nothing\n"), line


def plant(*names: str) -> subprocess.CompletedProcess[str]:
    """What `make mutants` does."""
    need_sim()
    command = [sys.executable, "-m", "native.mutants.run", *names]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)


def test_some_faults_are_caught() -> None:
    names = random.sample([mutant.name for mutant in MUTANTS], SAMPLE)
    done = plant(*names)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{SAMPLE} of {SAMPLE} faults caught\n")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_faults_are_caught() -> None:
    done = plant()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{len(MUTANTS)} of {len(MUTANTS)} faults caught\n")
