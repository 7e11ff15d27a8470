"""What `make run` refuses, in one line each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clocks.waiting import LIMIT

ROOT = Path(__file__).parents[3]
LOCAL = "deploy/local.py"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _refusal(*arguments: str) -> str:
    """The one line with which local.py refuses."""
    done = subprocess.run([sys.executable, LOCAL, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_taken_port_is_one_line_with_advice(taken: int) -> None:
    for arguments, setting in (
        (("--engine-port=0", f"--port={taken}"), "PORT"),
        (("--port=0", f"--engine-port={taken}"), "ENGINE_PORT"),
        (("--port=0", "--engine-port=0", f"--http-port={taken}"), "HTTP_PORT"),
    ):
        line = _refusal(*arguments)
        assert f"port {taken} ({setting}) is in use" in line
        assert f"make run {setting}=0" in line


@pytest.mark.parametrize("port", ["http", "-1", "65536", "7070.0", ""])
def test_what_is_no_port_is_refused_in_one_line(port: str) -> None:
    line = _refusal(f"--port={port}")
    assert line.startswith(f'headrace: PORT: "{port}"')
    assert "65535" in line


def test_one_port_for_both_is_refused() -> None:
    assert "both 7171" in _refusal("--port=7171", "--engine-port=7171")


def test_f9_a_folder_of_models_that_is_none_is_refused(tmp_path: Path) -> None:
    assert f"MODELS: {tmp_path}/absent is no directory" in _refusal(f"--models={tmp_path}/absent")


def test_a_prompt_that_is_no_text_is_refused() -> None:
    assert "UTF-8" in _refusal(os.fsdecode(b"--prompt=\xff"))


# The end
