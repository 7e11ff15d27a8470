"""The first minute of a new user: `make run`."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


def _make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=280)


def test_a_prompt_gives_the_answer_alone_and_ends_what_it_started() -> None:
    mark = str(uuid.uuid4())
    done = _make("run", "PROMPT=What is the capital of France?", HEADRACE_TEST_MARK=mark)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "listening" not in done.stdout
    for part in ("engine e1", "gateway", "ready", "tokens of KV cache"):
        assert part in done.stderr
    assert [process for process in psutil.process_iter() if _mark(process) == mark] == []


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("HEADRACE_TEST_MARK")
    except psutil.Error:
        return None


def test_help_lists_the_tasks() -> None:
    text = _make("help").stdout
    for task in ("run", "test", "check", "help"):
        assert any(line.startswith(f"{task} ") for line in text.splitlines())


def test_what_is_missing_is_named_in_one_line(tmp_path: Path) -> None:
    """A machine with a shell and Python only."""
    (tmp_path / "python3").symlink_to(Path(sys.executable).resolve())
    script = str(ROOT / "deploy" / "requirements.sh")
    done = subprocess.run(
        ["/bin/sh", script, "python3"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "g++" in done.stderr
    none = subprocess.run(
        ["/bin/sh", script, "python9"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert none.returncode == 1
    assert "python9 is missing" in none.stderr
