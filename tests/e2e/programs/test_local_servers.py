"""The parts of `make run` that start servers, show progress and print answers."""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import local
import local_servers
import psutil
import pytest
import terminal
from headrace import Client
from local_servers import LocalError, Server, servers
from support.clocks.waiting import LIMIT, wait_until
from support.models.tiny_models import make_tiny_llama


@pytest.fixture
def before() -> list[psutil.Process]:
    """The servers that other tests, in this process, have started."""
    return _children()


def test_a_server_that_dies_is_noticed_and_named(before: list[psutil.Process]) -> None:
    with pytest.raises(LocalError, match="engine e1 ended: killed by SIGKILL"), servers(0, 0) as (_, gone):
        _started("headrace_engine", before).kill()
        assert gone.wait(LIMIT)
    assert _started_since(before) == []


def test_a_gateway_that_dies_ends_what_waits_for_its_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: list[psutil.Process]
) -> None:
    folder = make_tiny_llama(tmp_path / "tiny", max_position_embeddings=2048)
    monkeypatch.setattr(local, "model_path", lambda: str(folder))
    answer = local.answer

    def killed_before(client: Client, prompt: str) -> None:
        _started("headrace_gateway", before).kill()
        answer(client, prompt)

    monkeypatch.setattr(local, "answer", killed_before)
    options = argparse.Namespace(prompt=None, port=0, engine_port=0, http_port=None, models=tmp_path)
    with pytest.raises(LocalError, match=r"^gateway ended: killed by SIGKILL$"):
        local.run(options)
    assert _started_since(before) == []


def test_http_is_served_where_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    with servers(0, 0, http_port=0) as (address, _):
        told = re.search(rf"listening on {address} \(gRPC\) and (\S+) \(HTTP\)", capfd.readouterr().err)
        assert told is not None
        with urlopen(f"http://{told[1]}/healthz", timeout=LIMIT) as answer:
            assert answer.status == 200


def test_a_port_lost_at_the_last_moment_is_told_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LocalError, match="did not start: ") as failure, servers(port, 0):
            pass
    assert f"127.0.0.1:{port}" in str(failure.value)
    assert "{" not in str(failure.value)


def test_a_server_that_does_not_end_in_time_is_killed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "deaf.py").write_text(_DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(local_servers, "_GRACE", 0.1)
    gone = threading.Event()
    server = Server("deaf", ["deaf"], gone)
    assert server.address == "nowhere"
    server.ask_to_end()
    server.see_off(0.1)
    assert server.ended
    assert server.manner_of_end == "killed by SIGKILL"
    assert "deaf        did not end in" in capfd.readouterr().err


def test_whom_a_server_waits_for_and_how_long_is_said_once() -> None:
    engine = {"event": "draining", "level": "info", "requests": 2, "limit_s": 5.0}
    assert local_servers.draining(engine) == "waiting for 2 requests, at most 5 s"
    assert (
        local_servers.draining({"event": "draining", "streams": 1, "limit_s": 8.0})
        == "waiting for 1 stream, at most 8 s"
    )


_DEAF = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"event": "listening", "address": "nowhere"}', file=sys.stderr, flush=True)
while True:
    signal.pause()
"""


def _children() -> list[psutil.Process]:
    running = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in running if "headrace_" in " ".join(child.cmdline())]


def _started_since(before: list[psutil.Process]) -> list[psutil.Process]:
    return [child for child in _children() if child not in before]


def _started(name: str, before: list[psutil.Process]) -> psutil.Process:
    """Return the server of the test itself: a gateway that other tests share may run beside it."""
    (child,) = (child for child in _started_since(before) if name in child.cmdline())
    return child


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    """The race between starting and being tied: the number given is not the parent's."""
    tied = str(Path(local_servers.__file__).with_name("tied.py"))
    done = subprocess.run([sys.executable, tied, "1", "-c", "print('lives')"], capture_output=True, timeout=LIMIT)
    assert done.returncode == -9
    assert done.stdout == b""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A tiny model under the name of the real one."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    with Client("inprocess:") as client:
        client.install_model(local.MODEL, path=str(folder), num_threads=1, max_length=512)
        client.start_model(local.MODEL)
        yield client


def test_an_answer_cut_at_its_limit_says_so_on_stderr(
    client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "MAX_NEW_TOKENS", 3)
    local.answer(client, "Hello")
    out, err = capfd.readouterr()
    assert out.endswith("\n")
    assert "cut" not in out
    assert err == "headrace:   the answer was cut at 3 tokens, the limit of `make run`\n"


def test_a_reader_who_has_had_enough_is_no_failure_of_stdout(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(BrokenPipeError):
            local.answer(client, "Hello")


def test_a_full_disk_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(LocalError, match="cannot write the answer: No space left on device"):
            local.answer(client, "Hello")


def test_a_long_step_tells_its_seconds_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(terminal, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(terminal, "print_line", lines.append)
    with terminal.Step("smol", "loading") as step:
        wait_until(lambda: len(lines) >= 2, "nothing was told")
        step.now("loading", "5 of 9 MB")
        wait_until(lambda: any("5 of 9 MB" in line for line in lines), "no detail was told")
        step.now("warming up")
    reported = len(lines)
    assert lines[0] == "smol        loading"
    assert lines[1] == "smol        loading, 0 s"
    assert "smol        warming up" in lines
    assert len(lines) == reported
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "listen_failed", "level": "error", "reason": "port is taken"}, "listen failed: port is taken"),
        ({"event": "core_lost", "engine": "e1", "model": "smol", "restarts": 1}, "core lost: model smol, restarts 1"),
        ({"event": "Traceback (most recent call last):"}, "Traceback (most recent call last):"),
    ],
)
def test_events_of_servers_are_shown_in_words(event: dict[str, object], words: str) -> None:
    assert local_servers.sentence(event) == words
