"""Steps of an installation end with the make that runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STEP = Path(__file__).resolve().parents[3] / "deploy" / "step.py"
COMMAND = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_step_ends_when_make_alone_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(
        f"all:\n\t@exec {sys.executable} {STEP} waiting {sys.executable} -c '{COMMAND}'\n"
    )
    make = subprocess.Popen(["make", "-C", tmp_path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert make.stderr is not None
    command = next(int(line) for line in make.stderr if line.strip().isdecimal())
    make.send_signal(number)
    try:
        rest = make.communicate(timeout=60)[1]  # Until the last process that has the pipe is gone.
    except subprocess.TimeoutExpired:
        os.kill(command, signal.SIGKILL)
        raise
    assert "waiting: failed after" in rest
