"""The command line, against the scripted server."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from typing import Any

import grpc
import pytest
from headrace import cli
from headrace.cli_options import read_options
from headrace.v1 import (
    engine_service_pb2,
    model_pb2,
    model_service_pb2,
    request_pb2,
    request_service_pb2,
    stat_pb2,
    status_pb2,
)
from scripted_server import Failure, Hang, ScriptedServer
from wire_samples import accepted, end_record, ended, tokens

RELEASED = request_service_pb2.ReleaseRequestResponse()


def run(server: ScriptedServer, *arguments: str) -> int:
    """One command."""
    command, *rest = arguments
    return cli.main([command, "--address", server.address, *rest])


def script_answer(server: ScriptedServer, *texts: str) -> None:
    """A request that answers these texts, a token each."""
    ids = list(range(len(texts)))
    server.expect("StartRequest", accepted())
    steps = [tokens(ids, place, place + 1, text=text) for place, text in enumerate(texts)]
    server.expect("GeneratedElements", [*steps, ended(ids)])
    server.expect("ReleaseRequest", RELEASED)


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


def test_chat_on_a_pipe_keeps_the_history(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script_answer(server, "Hello ", "you.")
    script_answer(server, "Bye.")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\nI go\n"))
    assert run(server, "chat", "smol", "--system", "Be brief.") == 0
    out, err = capsys.readouterr()
    assert out == "Hello you.\nBye.\n"
    assert "2 tokens" in err
    assert "50.0 tok/s" in err
    history = [(one.role, one.content) for one in server.requests("StartRequest")[1].chat.messages]
    assert history == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello you."), ("user", "I go")]


def test_an_interrupt_stops_the_answer_and_not_the_chat(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = end_record([0, 1], finish_reason=request_pb2.FINISH_REASON_STOPPED)
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens([0, 1], text="Half an"), ended([0, 1], record=stopped)])
    server.expect("StopRequest", request_service_pb2.StopRequestResponse())
    server.expect("ReleaseRequest", RELEASED)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text == "Half an":
            raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_say", say)
    assert run(server, "chat", "smol") == 0
    assert said == ["Half an", "\n"]
    assert "STOPPED" in capsys.readouterr().err


def script_models(server: ScriptedServer) -> None:
    """Two models on an engine."""
    models = [
        model_pb2.ModelInfo(model_name="smol", engine="e1", state=model_pb2.MODEL_STATE_RUNNING),
        model_pb2.ModelInfo(model_name="big", engine="e1", state=model_pb2.MODEL_STATE_INITIAL),
    ]
    stats = [stat_pb2.EngineStat(model_name="smol", engine="e1", tokens_total=65536, running=3, waiting=1)]
    server.expect("ListModels", model_service_pb2.ListModelsResponse(models=models))
    server.expect("GetEngineStat", engine_service_pb2.GetEngineStatResponse(stats=stats))


def test_models_on_a_pipe_are_columns(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    script_models(server)
    assert run(server, "models") == 0
    assert capsys.readouterr().out == "smol\te1\tRUNNING\t65,536\t3\t1\nbig\te1\tINITIAL\t\t\t\n"


def test_models_on_a_terminal_are_a_table(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(server)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(server, "models") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("KV tokens", "65,536", "smol", "INITIAL"))


def info(state: int, **fields: Any) -> model_pb2.ModelInfo:
    """A model on an engine."""
    return model_pb2.ModelInfo(model_name="smol", engine="e1", state=state, **fields)


def watch(*infos: model_pb2.ModelInfo) -> list[Any]:
    """A stream of changes that goes on."""
    return [*[model_service_pb2.WatchModelResponse(model=one) for one in infos], Hang()]


def test_install_follows_the_model_until_it_runs(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    progress = model_pb2.ModelProgress(phase=model_pb2.MODEL_PHASE_LOADING, bytes_done=1, bytes_total=2)
    server.expect(
        "InstallModel", model_service_pb2.InstallModelResponse(engines=[info(model_pb2.MODEL_STATE_INSTALLING)])
    )
    server.expect("StartModel", model_service_pb2.StartModelResponse(engines=[info(model_pb2.MODEL_STATE_STARTING)]))
    server.expect(
        "WatchModel",
        watch(info(model_pb2.MODEL_STATE_INSTALLING), info(model_pb2.MODEL_STATE_INITIAL)),
        watch(info(model_pb2.MODEL_STATE_STARTING, progress=progress), info(model_pb2.MODEL_STATE_RUNNING)),
    )
    assert run(server, "install", "smol", "x.gguf", "--start", "-o", "max_batch=8", "--engine", "e1") == 0
    assert capsys.readouterr() == ("", "INITIAL smol  e1\nRUNNING smol  e1\n")
    request = server.requests("InstallModel")[0]
    assert (request.config.max_batch, list(request.engine_ids), request.no_wait) == (8, ["e1"], True)


def test_an_install_that_fails_says_why_and_exits_with_1(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = status_pb2.Status(code=9, message="x.gguf is no model.")
    server.expect(
        "InstallModel", model_service_pb2.InstallModelResponse(engines=[info(model_pb2.MODEL_STATE_INSTALLING)])
    )
    server.expect("WatchModel", watch(info(model_pb2.MODEL_STATE_FAILED, failure=failure)))
    assert run(server, "install", "smol", "x.gguf", "--start") == 1
    assert "FAILED smol  e1: x.gguf is no model." in capsys.readouterr().err


def test_failures_are_a_sentence_on_stderr(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.expect("StartRequest", Failure(grpc.StatusCode.NOT_FOUND, 'no model "smol".', reason="UNKNOWN_MODEL"))
    assert run(server, "generate", "smol", "Hi") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r'headrace: no model "smol"\. \[UNKNOWN_MODEL, request [0-9a-f]{4}…\]\n', err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "smol", "Hi", "-o", "temprature=1"], "did you mean temperature"),
        (["generate", "smol", "Hi", "-o", "temperature"], "write FIELD=VALUE"),
        (["generate", "smol", "Hi", "--address", "nowhere"], "cannot be parsed"),
    ],
)
def test_a_wrong_call_exits_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_without_rich_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["models"]) == 1
    assert "pip install 'headrace[cli]'" in capsys.readouterr().err


def test_options_are_json_or_text() -> None:
    assert read_options(["a=1", "b=x y", "c=[1]", "d=true", "e=", "f=a=b"]) == {
        "a": 1,
        "b": "x y",
        "c": [1],
        "d": True,
        "e": "",
        "f": "a=b",
    }
    with pytest.raises(ValueError, match="a is given twice"):
        read_options(["a=1", "a=2"])


def test_the_address_and_key_come_from_the_environment(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script_models(server)
    monkeypatch.setenv("HEADRACE_ADDRESS", server.address)
    monkeypatch.setenv("HEADRACE_API_KEY", "k1")
    assert cli.main(["models"]) == 0
    assert "smol" in capsys.readouterr().out
