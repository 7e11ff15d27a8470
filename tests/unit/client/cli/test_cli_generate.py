"""`generate` on the command line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import grpc
import pytest
from headrace import Client, RetryPolicy
from headrace.cli import answers as cli_answers
from headrace.cli import main as cli
from headrace_proto.v1 import generation_pb2, request_pb2
from support.clocks.waiting import LIMIT
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, tokens
from unit.client.cli.command_line import RELEASED, run, script_answer

MAX_LENGTH = request_pb2.FINISH_REASON_MAX_LENGTH
DRAINED = request_pb2.FINISH_REASON_DRAINED

NO_OTHER = Failure(grpc.StatusCode.NOT_FOUND, "none has the model", reason="UNKNOWN_MODEL")
"""Answer to a hand-over where there is no other engine."""


def test_generate_prints_the_answer_alone(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    script_answer(server, "The sky ", "is blue.")
    assert run(server, "generate", "smol", "Why?", "-o", "temperature=0", "-o", 'stop_words=["\\n"]') == 0
    assert capsys.readouterr() == ("The sky is blue.\n", "")
    request = server.requests("StartRequest")[0]
    assert (request.text, request.config.temperature, list(request.config.stop_words)) == ("Why?", 0.0, ["\n"])


def test_generate_reads_stdin(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    script_answer(server, "yes")
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines"))
    assert run(server, "generate", "smol", "-") == 0
    assert server.requests("StartRequest")[0].text == "two\nlines"


def test_a_closed_stdin_is_an_error_where_it_is_read(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `headrace generate smol - <&-`."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run(server, "generate", "smol", "-") == 1
    assert capsys.readouterr() == ("", "headrace: stdin is closed: there is nothing to read\n")
    script_answer(server, "yes")
    assert run(server, "generate", "smol", "Hi") == 0


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_an_answer_beyond_stdouts_encoding_is_escaped(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii", errors=errors))
    script_answer(server, "caf", "\u00e9 \ufffd", "!")
    assert run(server, "generate", "smol", "Hi") == 0
    assert out.getvalue() == b"caf\\xe9 \\ufffd!\n"


def test_how_stdout_shows_what_it_cannot_is_left_to_who_chose_it(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with PYTHONIOENCODING=ascii:replace."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii", errors="replace"))
    script_answer(server, "\u00e9")
    assert run(server, "generate", "smol", "Hi") == 0
    assert out.getvalue() == b"?\n"


@pytest.mark.parametrize(
    ("reason", "config", "words"),
    [
        (
            MAX_LENGTH,
            {"max_new_tokens": 2, "max_length": 9},
            "(cut after 2 tokens: set another limit with -o max_new_tokens",
        ),
        (MAX_LENGTH, {"max_length": 5}, "(cut: prompt and answer reached max_length = 5 tokens)"),
        (DRAINED, {}, "(cut: DRAINED, the model or its engine was stopped)"),
    ],
)
def test_the_reason_of_a_cut_answer_is_printed_on_stderr(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], reason: int, config: dict[str, int], words: str
) -> None:
    effective = generation_pb2.GenerationConfig(**config)
    script_answer(server, "a", "b", reason=reason, prompt_token_count=3, effective_config=effective)
    if reason == DRAINED:
        server.expect("StartRequest", NO_OTHER)
    assert run(server, "generate", "smol", "Hi") == 0
    out, err = capsys.readouterr()
    assert out == "ab\n"
    assert err.startswith(words)
    assert err.count("\n") == 1


def test_warnings_of_the_engine_are_printed(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    warning = generation_pb2.Warning(field="text", message="the prompt begins twice")
    script_answer(server, "a", warnings=[warning])
    assert run(server, "generate", "smol", "Hi") == 0
    assert capsys.readouterr() == ("a\n", "note: the prompt begins twice\n")


def command(server: ScriptedServer, *arguments: str) -> subprocess.Popen[str]:
    """One command as a process of its own."""
    name, *rest = arguments
    line = [sys.executable, "-m", "headrace.cli", name, "--address", server.address, *rest]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_closed_stdout_ends_generate_quietly_and_its_request(server: ScriptedServer) -> None:
    """As in `headrace generate … | head -c 5`."""
    closed = threading.Event()
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens([0, 1], 0, 1, text="Once "), closed, tokens([0, 1], 1), Hang()])
    server.expect("ReleaseRequest", RELEASED)
    process = command(server, "generate", "smol", "Hi")
    assert process.stdout is not None
    assert process.stdout.read(5) == "Once "
    process.stdout.close()
    closed.set()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(LIMIT) == cli.CLOSED_STDOUT
    server.wait_for("ReleaseRequest")


def test_an_answer_that_breaks_off_ends_with_its_line(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.expect("StartRequest", accepted())
    lost = Failure(grpc.StatusCode.NOT_FOUND, "the engine is gone", reason="ENGINE_LOST")
    server.expect("GeneratedElements", [tokens([0], text="Half"), lost])
    server.expect("StartRequest", NO_OTHER)
    server.expect("ReleaseRequest", RELEASED)
    assert run(server, "generate", "smol", "Hi") == 1
    out, err = capsys.readouterr()
    assert out == "Half\n"
    assert err.startswith("headrace: the engine that held the request is gone, and no other one took over: none has")


@pytest.fixture
def leaving() -> Iterator[ScriptedServer]:
    """A server with sessions that begins an answer, and is to be stopped by the test."""
    server = ScriptedServer(sessions=True).start()
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens([0, 1], 0, 1, text="Once "), Hang()])
    yield server
    server.stop()


def test_a_lost_server_is_one_line_at_once_and_one_at_the_end(
    leaving: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(first_delay=0.001, max_delay=0.001, give_up_after=2.0)
    monkeypatch.setattr(cli, "Client", partial(Client, retry=policy))
    say = cli_answers.say

    def stop_after(text: str) -> None:
        say(text)
        if text == "Once ":
            leaving.stop()

    monkeypatch.setattr(cli_answers, "say", stop_after)
    assert run(leaving, "generate", "smol", "Hi") == 1
    out, err = capsys.readouterr()
    assert out == "Once \n"
    notice, end = err.splitlines()
    assert notice.startswith(f"headrace: the connection was lost: no answer from {leaving.address}")
    assert notice.endswith("[UNAVAILABLE] Trying again for up to 2 s.")
    assert end.startswith(f"headrace: no answer from {leaving.address}")


def test_a_notice_of_a_wait_speaks_of_commands(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(first_delay=0.001, max_delay=0.001, give_up_after=2.0)
    monkeypatch.setattr(cli, "Client", partial(Client, retry=policy))
    text = 'model "smol" is STARTING: try again, or watch it (WatchModel)'
    server.expect("StartRequest", Failure(grpc.StatusCode.UNAVAILABLE, text, reason="MODEL_STARTING"))
    script_answer(server, "Hi")
    assert run(server, "generate", "smol", "Hi") == 0
    assert "watch it (headrace models). [MODEL_STARTING" in capsys.readouterr().err


def test_a_status_line_does_not_follow_an_answer_on_its_line(leaving: ScriptedServer) -> None:
    line = [sys.executable, "-m", "headrace.cli", "generate", "smol", "Hi", "--address", leaving.address]
    quiet = os.environ | {"GRPC_VERBOSITY": "NONE"}
    process = subprocess.Popen(line, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    with process.stdout as lines:
        try:
            assert lines.read(5) == "Once "
            leaving.stop()
            assert lines.readline() == "\n"
            assert lines.readline().startswith("headrace: the connection was lost: no answer from ")
        finally:
            process.kill()
            process.wait()
