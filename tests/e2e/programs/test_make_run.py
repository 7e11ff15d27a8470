"""The first minute of a new user: `make run`."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.clocks.waiting import LIMIT, wait_until

ROOT = Path(__file__).parents[3]
STANDS = ("-o", ".venv/.installed", "-o", ".venv/.model")
"""What make does not make: it would install beneath the tests that run beside these."""

LOCAL, ENGINE, GATEWAY, CORE = "deploy/local.py", "headrace_engine", "headrace_gateway", "headrace_engine.process"


def _make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=280)


def _marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _mark(process) == mark]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("HEADRACE_TEST_MARK")
    except psutil.Error:
        return None


def test_a_prompt_prints_the_answer_alone_and_stops_the_servers() -> None:
    mark = str(uuid.uuid4())
    done = _make(*STANDS, "run", "PROMPT=What is the capital of France?", HEADRACE_TEST_MARK=mark)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "listening" not in done.stdout
    for part in ("engine e1", "gateway", "ready in", "tokens of KV cache", "stopping"):
        assert part in done.stderr
    assert _marked(mark) == []


# What make hands over


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A folder whose `python` prints its arguments as JSON."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    return folder


def _handed_over(recorder: Path, *arguments: str, **environment: str) -> list[str]:
    """What `make run` calls deploy/local.py with, but for its first two arguments."""
    done = _make(*STANDS, "run", f"BIN={recorder}", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    script, parent, *rest = json.loads(done.stdout)
    assert script == LOCAL
    assert parent.startswith("--parent=")
    return [str(argument) for argument in rest]


PROMPTS = (
    "costs $5, or $$5, or ${HOME}, or $(HOME)",
    "it's \"quoted\", 'twice', and `echo back` quoted",
    "two\nlines, a\ttab, and a space at the end ",
    "--prompt",
    "-n 5",
    "# a comment? a \\ backslash; a && list > file",
    "größer 東京 🙂",
    "PORT=1 PROMPT=2",
)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_arrives_as_it_was_typed(recorder: Path, prompt: str) -> None:
    assert _handed_over(recorder, f"PROMPT={prompt}") == [f"--prompt={prompt}"]
    assert _handed_over(recorder, PROMPT=prompt) == [f"--prompt={prompt}"]


@pytest.mark.parametrize("setting", ["PROMPT", "PORT", "ENGINE_PORT", "HTTP_PORT", "MODELS"])
def test_nothing_in_a_setting_is_run(recorder: Path, tmp_path: Path, setting: str) -> None:
    trace = tmp_path / "ran"
    for text in (f"$(shell touch {trace})", f"$$(touch {trace})", f"`touch {trace}`", f'"; touch {trace}; "'):
        expected = f"--{setting.lower().replace('_', '-')}={text}"
        assert _handed_over(recorder, f"{setting}={text}") == [expected]
        assert _handed_over(recorder, **{setting: text}) == [expected]
    assert not trace.exists()


def test_without_settings_there_are_no_arguments(recorder: Path) -> None:
    assert _handed_over(recorder) == []
    assert _handed_over(recorder, "PROMPT=", "PORT=") == []


# The first time


def test_all_that_an_installation_prints_goes_to_stderr(tmp_path: Path) -> None:
    """In a fresh tree, with a Python whose environments come with chatty programs that install nothing."""
    tree = _fresh_tree(tmp_path / "tree")
    python = tmp_path / "python"
    python.write_text(_CHATTY_PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "run", f"PYTHON={python}", "PROMPT=Hello"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the answer\n"
    for words in ("making the virtual environment", "installing torch", "installing client", "installing the model"):
        assert f"headrace:   {words}" in done.stderr
    assert len(re.findall(r"done in \d+ s\n", done.stderr)) == 4
    assert "chatty pip" in done.stderr
    assert "chatty venv" in done.stderr


_CHATTY_PYTHON = """#!/bin/sh
if [ "$1 $2" != "-m venv" ]; then exec {python} "$@"; fi
mkdir -p "$3/bin"
echo "chatty venv"
printf '#!/bin/sh\\necho chatty pip\\n' >"$3/bin/pip"
printf '#!/bin/sh\\n[ "$1" = -c ] || echo "the answer"\\n' >"$3/bin/python"
chmod +x "$3/bin/pip" "$3/bin/python"
"""


def _fresh_tree(tree: Path) -> Path:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    needed = ("deploy/", "proto/", "client/pyproject", "gateway/pyproject", "engine_service/pyproject")
    for name in files.splitlines():
        if name in ("Makefile", "constraints.txt") or name.startswith(needed):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    for folder in ("csrc", "engine_service/headrace_engine"):
        (tree / folder).mkdir()
    return tree


# Ports


@dataclass
class Run:
    """A `make run` in progress, on any free ports.

    Attributes:
        process: make's.
        stderr: file with what was printed.
        mark: in the environment of all its processes.
    """

    process: subprocess.Popen[bytes]
    stderr: Path
    mark: str

    def part(self, name: str) -> psutil.Process | None:
        """One of its processes, by a word of its command line."""
        return next((process for process in _marked(self.mark) if name in _words(process)), None)

    def wait_for(self, *names: str) -> None:
        """Wait until all these are there."""
        wait_until(lambda: all(map(self.part, names)), lambda: f"not all of {names} are there: {self.text}")

    def wait_for_text(self, words: str) -> None:
        """Wait until it printed this."""
        wait_until(lambda: words in self.text, lambda: f"not {words!r}: {self.text}")

    def wait_for_end(self) -> None:
        """Wait until nothing of it is left."""
        self.process.wait(LIMIT)
        wait_until(lambda: not _marked(self.mark), lambda: f"left: {[*map(_words, _marked(self.mark))]}")

    @property
    def text(self) -> str:
        return self.stderr.read_text()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts `make run`, in a session of its own or with the words of a command before it."""
    mark = str(uuid.uuid4())
    errors = tmp_path / "stderr"
    runs: list[Run] = []

    def start(*before: str, stdin: int = subprocess.DEVNULL) -> Run:
        command = [*before, "make", "--no-print-directory", *STANDS, "run", "PORT=0", "ENGINE_PORT=0"]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {"HEADRACE_TEST_MARK": mark},
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=not before,
            )
        runs.append(Run(process, errors, mark))
        return runs[-1]

    yield start
    for process in _marked(mark):
        with contextlib.suppress(psutil.Error):
            process.kill()
    for run in runs:
        run.process.wait(LIMIT)


@pytest.mark.parametrize("victim", [LOCAL, "make"])
def test_a_killed_run_leaves_nothing(start: Callable[..., Run], victim: str) -> None:
    run = start()
    run.wait_for(ENGINE, GATEWAY, CORE)
    process = run.part(victim)
    assert process is not None
    process.kill()
    run.wait_for_end()


@pytest.mark.parametrize("shell", [(), ("sh", "-c", '"$@"; :', "sh")], ids=["alone", "in a shell"])
def test_a_closed_terminal_ends_everything(start: Callable[..., Run], shell: tuple[str, ...]) -> None:
    terminal, end = pty.openpty()
    run = start("setsid", "--ctty", *shell, stdin=end)
    os.close(end)
    run.wait_for(ENGINE, GATEWAY, CORE)
    os.close(terminal)
    run.wait_for_end()
    assert "stopping" in run.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_and_says_what_it_waits_for(start: Callable[..., Run], number: int) -> None:
    """The group gets it, as from Ctrl-C and from `timeout`; make passes SIGTERM on to a process that has it already."""
    run = start()
    run.wait_for_text("gateway     listening")
    os.killpg(run.process.pid, number)
    run.wait_for_end()
    assert "stopping: waiting for engine e1 and gateway" in run.text
    assert "stopped" in run.text
    assert "Traceback" not in run.text


# Beside it


def test_help_lists_the_tasks_and_settings() -> None:
    text = _make("help").stdout
    for task in ("run", "test", "check", "help", "PROMPT", "PORT", "ENGINE_PORT", "TORCH_INDEX"):
        assert any(line.startswith(f"{task} ") for line in text.splitlines())


def test_what_is_missing_is_named_in_one_line(tmp_path: Path) -> None:
    """A machine with a shell and Python only."""
    (tmp_path / "python3").symlink_to(Path(sys.executable).resolve())
    script = str(ROOT / "deploy" / "requirements.sh")
    done = subprocess.run(
        ["/bin/sh", script, "python3"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "g++" in done.stderr
    none = subprocess.run(
        ["/bin/sh", script, "python9"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=LIMIT
    )
    assert none.returncode == 1
    assert "python9 is missing" in none.stderr
