"""When `make compose-test` skips, and when it fails. Programs that ask the machine are replaced by ones that answer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABLE = {
    "docker": "exit 1",
    "id": "echo 0",
    "apt-get": "exit 1",
    "unshare": "exit 0",
    "mkdir": 'case "$1" in /sys/*) ;; *) command -p mkdir "$@" ;; esac',
    "rmdir": "exit 0",
}
"""A machine of root's where no engine answers and one could be started."""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def compose_test(tmp_path: Path) -> Run:
    """Runs a copy of the script, so that nothing of the checkout is touched."""
    (tmp_path / "deploy").mkdir()
    for name in ("compose_test.sh", "docker_engine.sh"):
        shutil.copy(ROOT / "deploy" / name, tmp_path / "deploy" / name)
    programs = tmp_path / "bin"
    programs.mkdir()

    def run(answers: dict[str, str], **settings: str) -> subprocess.CompletedProcess[str]:
        for name, body in (ABLE | answers).items():
            (programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (programs / name).chmod(0o755)
        environment = {key: value for key, value in os.environ.items() if key not in ("CI", "DOCKER_START")}
        environment |= {"PATH": f"{programs}:{environment['PATH']}", **settings}
        command = [tmp_path / "deploy" / "compose_test.sh"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"id": "echo 1000"}, "that takes root"),
        ({"unshare": "exit 1"}, "root may not make mounts and networks here"),
        ({"mkdir": "exit 1"}, "root may not make control groups here"),
    ],
)
def test_without_an_engine_it_skips_and_says_why_in_ci_too(
    compose_test: Run, answers: dict[str, str], reason: str
) -> None:
    done = compose_test(answers, CI="true", DOCKER_START="1")
    assert done.returncode == 0
    assert done.stdout == f"compose-test skipped: no Docker engine answers, and none can be started here: {reason}\n"


def test_an_engine_that_could_be_started_is_asked_for(compose_test: Run) -> None:
    """A developer is told how; CI must not pass over it."""
    assert compose_test({}).returncode == 0
    assert "DOCKER_START=1 starts one" in compose_test({}).stdout
    done = compose_test({}, CI="true")
    assert (done.returncode, done.stdout) == (1, "")
    assert "set DOCKER_START=1" in done.stderr


def test_ci_can_leave_it_out_by_name(compose_test: Run) -> None:
    done = compose_test({}, CI="true", DOCKER_START="never")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "compose-test skipped: no Docker engine answers, and DOCKER_START=never\n"


def test_an_engine_that_fails_to_come_up_fails_with_its_log(compose_test: Run) -> None:
    present = dict.fromkeys(("docker-compose", "iptables", "mmdebstrap"), "exit 0")
    done = compose_test({"dockerd": "echo no devices cgroup; exit 1", **present}, DOCKER_START="1")
    assert done.returncode == 1
    assert "the Docker engine did not start" in done.stderr
    assert done.stderr.endswith("no devices cgroup\n")
