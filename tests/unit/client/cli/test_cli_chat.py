"""Conversations on the command line."""

from __future__ import annotations

import io
import sys

import grpc
import pytest
from headrace.cli import chat as cli_chat
from headrace.cli import main as cli
from headrace_proto.v1 import generation_pb2, model_pb2, model_service_pb2, request_pb2, request_service_pb2, status_pb2
from support.scripted.replies import URL, Failure, Hang, packed
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import HANDLE, accepted, end_record, ended, tokens
from unit.client.cli.command_line import RELEASED, info, run, script_answer, script_running

TOO_LONG = Failure(grpc.StatusCode.INVALID_ARGUMENT, "prompt has 268 tokens; at most 159", reason="PROMPT_TOO_LONG")


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """What comes over a pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def history(server: ScriptedServer, place: int) -> list[tuple[str, str]]:
    """The conversation that a request was sent with."""
    return [(one.role, one.content) for one in server.requests("StartRequest")[place].chat.messages]


def test_chat_on_a_pipe_keeps_the_history(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script_running(server)
    script_answer(server, "Hello ", "you.")
    script_answer(server, "Bye.")
    type_lines(monkeypatch, "Hi", "", "I go")
    assert run(server, "chat", "smol", "--system", "Be brief.") == 0
    out, err = capsys.readouterr()
    assert out == "Hello you.\nBye.\n"
    assert "2 tokens" in err
    assert "50.0 tok/s" in err
    assert history(server, 1) == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello you."),
        ("user", "I go"),
    ]


def test_a_message_that_does_not_fit_is_taken_back(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script_running(server)
    script_answer(server, "Hello.")
    server.expect("StartRequest", TOO_LONG)
    script_answer(server, "Bye.")
    type_lines(monkeypatch, "Hi", "long " * 100, "I go")
    assert run(server, "chat", "smol") == 1
    out, err = capsys.readouterr()
    assert out == "Hello.\nBye.\n"
    assert "headrace: prompt has 268 tokens; at most 159. [PROMPT_TOO_LONG" in err
    assert "(the message was dropped: write a shorter one, or start over with /clear)" in err
    assert history(server, 2) == [("user", "Hi"), ("assistant", "Hello."), ("user", "I go")]


def test_a_message_whose_answer_does_not_fit_is_taken_back_too(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where -o max_new_tokens asks for more room than the first message leaves."""
    script_running(server)
    bad = status_pb2.BadRequest(field_violations=[{"field": "config.max_new_tokens", "description": "does not fit"}])
    detail = packed(bad, URL + "BadRequest")
    refusal = Failure(grpc.StatusCode.INVALID_ARGUMENT, "does not fit", reason="INVALID_FIELD", details=[detail])
    server.expect("StartRequest", refusal)
    script_answer(server, "Bye.")
    type_lines(monkeypatch, "long " * 100, "I go")
    assert run(server, "chat", "smol", "-o", "max_new_tokens=100") == 1
    assert "(the message was dropped: write a shorter one)" in capsys.readouterr().err
    assert history(server, 1) == [("user", "I go")]


def test_an_option_that_no_message_can_mend_ends_the_chat(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script_running(server)
    server.expect("StartRequest", Failure(grpc.StatusCode.INVALID_ARGUMENT, "top_p = 2", reason="INVALID_FIELD"))
    type_lines(monkeypatch, "Hi", "Hi again")
    assert run(server, "chat", "smol", "-o", "top_p=2") == 1
    assert "headrace: top_p = 2. [INVALID_FIELD" in capsys.readouterr().err


def test_clear_begins_anew_and_help_lists_what_there_is(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script_running(server)
    script_answer(server, "Hello.")
    script_answer(server, "Hello again.")
    type_lines(monkeypatch, "Hi", "/help", "/clear", "/claer", " /clear is what?")
    assert run(server, "chat", "smol", "--system", "Be brief.") == 0
    err = capsys.readouterr().err
    assert "/clear   start a new conversation" in err
    assert 'headrace: unknown command "/claer"; /help lists the commands' in err
    assert history(server, 1) == [("system", "Be brief."), ("user", " /clear is what?")]


def test_an_unknown_model_is_an_error_before_the_first_message(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.expect("GetModel", Failure(grpc.StatusCode.NOT_FOUND, "no model 'smol'", reason="UNKNOWN_MODEL"))
    type_lines(monkeypatch, "Hi")
    assert run(server, "chat", "smol") == 1
    assert capsys.readouterr().err.startswith("headrace: no model 'smol'. [UNKNOWN_MODEL] (headrace models lists")
    assert sys.stdin.read() == "Hi\n"


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (
            [info(model_pb2.MODEL_STATE_INITIAL)],
            'model "smol" is INITIAL. [MODEL_NOT_RUNNING] (headrace start smol starts it)',
        ),
        (
            [info(model_pb2.MODEL_STATE_FAILED, failure=status_pb2.Status(code=9, message="no room"))],
            'model "smol" is FAILED: no room. [MODEL_NOT_RUNNING] (headrace install smol PATH',
        ),
        ([info(model_pb2.MODEL_STATE_STARTING)], "(headrace models shows its state)"),
    ],
)
def test_a_model_that_does_not_run_is_reported_at_the_start(
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    models: list[model_pb2.ModelInfo],
    words: str,
) -> None:
    server.expect("GetModel", model_service_pb2.GetModelResponse(engines=models))
    type_lines(monkeypatch, "Hi")
    assert run(server, "chat", "smol") == 1
    assert words in capsys.readouterr().err


def test_a_model_that_runs_on_one_engine_is_enough(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [info(model_pb2.MODEL_STATE_FAILED), info(model_pb2.MODEL_STATE_RUNNING, engine="e2")]
    server.expect("GetModel", model_service_pb2.GetModelResponse(engines=models))
    type_lines(monkeypatch)
    assert run(server, "chat", "smol") == 0


def test_a_conversation_that_fills_max_length_says_what_to_do(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script_running(server)
    effective = generation_pb2.GenerationConfig(max_length=4)
    script_answer(server, "Hello", reason=request_pb2.FINISH_REASON_MAX_LENGTH, effective_config=effective)
    type_lines(monkeypatch, "Hi")
    assert run(server, "chat", "smol") == 0
    err = capsys.readouterr().err
    assert "(cut: prompt and answer reached max_length = 4 tokens)\n(the conversation is full" in err


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is typed at a terminal, line by line; at its end Ctrl-D."""
    lines: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def ask(prompt: str = "") -> str:
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", ask)
    return lines


@pytest.fixture
def interrupted(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An answer that is interrupted after its first words; what was printed of it."""
    script_running(server)
    server.expect("StartRequest", accepted())
    server.expect("ReleaseRequest", RELEASED)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text == "Half an":
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_chat, "say", say)
    return said


def test_at_a_terminal_an_interrupt_stops_only_the_answer(
    server: ScriptedServer, typed: list[str], interrupted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = end_record([0, 1], finish_reason=request_pb2.FINISH_REASON_STOPPED)
    server.expect("GeneratedElements", [tokens([0, 1], text="Half an"), ended([0, 1], record=stopped)])
    server.expect("StopRequest", request_service_pb2.StopRequestResponse())
    typed += ["Hi"]
    assert run(server, "chat", "smol") == 0
    assert interrupted == ["Half an", "\n"]
    assert "STOPPED" in capsys.readouterr().err


def test_on_a_pipe_an_interrupt_ends_the_chat_and_its_request(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, interrupted: list[str]
) -> None:
    """Nobody is there who would go on with it: a script's Ctrl-C is meant for all of it."""
    server.expect("GeneratedElements", [tokens([0, 1], text="Half an"), Hang()])
    type_lines(monkeypatch, "Hi", "Hi again")
    assert run(server, "chat", "smol") == cli.INTERRUPTED
    assert interrupted == ["Half an"]
    assert [request.handle for request in server.requests("ReleaseRequest")] == [HANDLE]
    assert sys.stdin.readline() == "Hi again\n"


def test_a_closed_stdin_is_an_error_of_chat(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `headrace chat smol <&-`."""
    script_running(server)
    monkeypatch.setattr(sys, "stdin", None)
    assert run(server, "chat", "smol") == 1
    assert capsys.readouterr() == ("", "headrace: stdin is closed: there is nothing to read\n")


def test_at_a_terminal_a_late_interrupt_keeps_the_conversation(
    server: ScriptedServer, typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was meant for an answer which had just ended."""
    typed += ["Hi", "I go"]
    script_running(server)
    script_answer(server, "Hello.")
    script_answer(server, "Bye.", handle="e1/i1/2")
    interrupts = [KeyboardInterrupt]

    def note(text: str, style: str = "") -> None:
        if "tok/s" in text and interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(cli_chat, "note", note)
    assert run(server, "chat", "smol") == 0
    assert history(server, 1) == [("user", "Hi"), ("assistant", "Hello."), ("user", "I go")]


def test_at_a_terminal_a_failed_answer_changes_no_conversation(
    server: ScriptedServer, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed += ["Hi", "Hi again"]
    script_running(server)
    server.expect("StartRequest", accepted())
    lost = Failure(grpc.StatusCode.NOT_FOUND, "the engine is gone", reason="ENGINE_LOST")
    server.expect("GeneratedElements", [tokens([0], text="Half"), lost])
    server.expect("StartRequest", Failure(grpc.StatusCode.NOT_FOUND, "no other engine", reason="UNKNOWN_MODEL"))
    server.expect("ReleaseRequest", RELEASED)
    script_answer(server, "Hello.")
    assert run(server, "chat", "smol") == 0
    out, err = capsys.readouterr()
    assert out == "Half\nHello.\n"
    assert "no other engine" in err
    assert "(the message was dropped)" in err
    assert history(server, 2) == [("user", "Hi again")]


def test_b4_a_chat_begins_with_a_model_that_is_about_to_run(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    coming = info(model_pb2.MODEL_STATE_STARTING, wanted_state=model_pb2.MODEL_STATE_RUNNING)
    server.expect("GetModel", model_service_pb2.GetModelResponse(engines=[coming]))
    script_answer(server, "Hello.")
    type_lines(monkeypatch, "Hi")
    assert run(server, "chat", "smol") == 0
    assert capsys.readouterr().out == "Hello.\n"
