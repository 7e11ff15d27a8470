"""The programs of examples/ run, in this process and against a gateway, and are as short as examples are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.clocks.waiting import LIMIT

FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs(file: Path, tiny: Path, address: str | None) -> None:
    assert 15 <= len(file.read_text().splitlines()) <= 40
    arguments = [str(tiny), *([address] if address else [])]
    done = subprocess.run([sys.executable, str(file), *arguments], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr == ""
