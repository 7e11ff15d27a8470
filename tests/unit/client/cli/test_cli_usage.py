"""The command line in general: failures, wrong calls, help, options and settings."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from headrace import HeadraceError, NotFoundError, StateError
from headrace.cli import main as cli
from headrace.cli.options import advice_for_flag, read_options
from headrace.cli.words import sentence
from headrace_proto.v1 import engine_service_pb2, model_service_pb2
from support.scripted.replies import Failure
from support.scripted.server import ScriptedServer
from unit.client.cli.command_line import run


def test_failures_are_a_sentence_on_stderr_with_the_way_out(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.expect("StartRequest", Failure(grpc.StatusCode.NOT_FOUND, 'no model "smol"', reason="UNKNOWN_MODEL"))
    assert run(server, "generate", "smol", "Hi") == 1
    out, err = capsys.readouterr()
    assert out == ""
    expected = r'headrace: no model "smol"\. \[UNKNOWN_MODEL, request [0-9a-f]{4}…\] \(headrace models lists .*\)\n'
    assert re.fullmatch(expected, err)


def test_a_line_on_a_pipe_is_never_wrapped(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    text = "long " * 100
    server.expect("StartRequest", Failure(grpc.StatusCode.INVALID_ARGUMENT, text, reason="INVALID_FIELD"))
    assert run(server, "generate", "smol", "Hi") == 1
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            StateError('model "smol" is INITIAL: start it first (start_model)', reason="MODEL_NOT_RUNNING"),
            'model "smol" is INITIAL: start it first (headrace start smol). [MODEL_NOT_RUNNING]',
        ),
        (
            StateError(
                'release_model: model "smol" is RUNNING: stop it first (stop_model). The call is possible from INITIAL',
                reason="WRONG_STATE",
                details={"state": "RUNNING"},
            ),
            'model "smol" is RUNNING: stop it first (headrace stop smol). The call is possible from INITIAL. '
            "[WRONG_STATE]",
        ),
        (
            StateError('stop_model: model "smol" is STOPPED', reason="WRONG_STATE", details={"state": "STOPPED"}),
            'model "smol" is STOPPED. [WRONG_STATE] (headrace start smol starts it)',
        ),
        (
            NotFoundError('no model "smol" on any engine: install it first (install_model)', reason="UNKNOWN_MODEL"),
            'no model "smol" on any engine: install it first (headrace install smol PATH). [UNKNOWN_MODEL]',
        ),
        (
            StateError("x.gguf is no model", reason="BAD_MODEL"),
            "x.gguf is no model. [BAD_MODEL] (headrace install smol PATH replaces it, headrace "
            "release smol frees the name)",
        ),
        (HeadraceError("the install_models"), "the install_models. [UNKNOWN]"),
    ],
)
def test_failures_name_commands_not_methods(error: HeadraceError, line: str) -> None:
    assert sentence(error, "smol") == line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "smol", "Hi", "-o", "temprature=1"], "did you mean temperature"),
        (["generate", "smol", "Hi", "-o", "max_tokens=5"], "did you mean max_new_tokens?"),
        (["install", "smol", "x", "-o", "max_model_len=5"], "did you mean max_length?"),
        (["generate", "smol", "Hi", "-o", "temperature"], "write FIELD=VALUE"),
        (["generate", "smol", "Hi", "--address", "nowhere"], "cannot be parsed"),
    ],
)
def test_a_wrong_call_exits_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--max-tokens", "5"],
            "unrecognized arguments: --max-tokens 5; fields are options: -o max_new_tokens=VALUE\n",
        ),
        (["--top_p=0.5"], "unrecognized arguments: --top_p=0.5; fields are options: -o top_p=VALUE\n"),
        (["--zzz"], "unrecognized arguments: --zzz\n"),
    ],
)
def test_a_field_given_as_a_flag_is_answered_with_how_to_give_it(
    arguments: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["generate", "smol", "Hi", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(words)
    assert advice_for_flag("temperature", ["temperature"]) == ""


@pytest.mark.parametrize("arguments", [["--address", "x:1", "models"], ["--address=x:1", "models"]])
def test_an_option_before_the_command_is_an_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "--address must follow the command, as in" in capsys.readouterr().err


def test_help_of_models_names_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["models", "--help"])
    assert "model, engine, state, KV tokens, running, waiting" in " ".join(capsys.readouterr().out.split())


def test_help_names_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    for name, field in (("generate", "repetition_penalty"), ("chat", "max_new_tokens"), ("install", "max_batch")):
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        assert field in capsys.readouterr().out


def test_the_doctor_is_the_engine_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert cli.main(["doctor"]) == 1
    assert "headrace-engine is not installed on this one" in capfd.readouterr().err
    program = tmp_path / "bin" / "headrace-engine"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\nexit 3\n')
    program.chmod(0o755)
    assert cli.main(["doctor", "/models/a", "--json"]) == 3
    assert capfd.readouterr().out == "--doctor /models/a --json\n"


def test_without_rich_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["models"]) == 1
    err = capsys.readouterr().err
    assert "pip install 'headrace[cli]'" in err
    assert "from a clone of Headrace pip install ./proto './client[cli]'" in err


def test_options_are_json_or_text() -> None:
    assert read_options(["a=1", "b=x y", "c=[1]", "d=true", "e=", "f=a=b"], "abcdef") == {
        "a": 1,
        "b": "x y",
        "c": [1],
        "d": True,
        "e": "",
        "f": "a=b",
    }
    with pytest.raises(ValueError, match="a is given twice"):
        read_options(["a=1", "a=2"], "a")
    for value, problem in (('{"b": 1, "b": 2}', "gives b twice"), ("NaN", "NaN"), ("1e999", "out of range")):
        with pytest.raises(ValueError, match=problem):
            read_options([f"a={value}"], "a")


def test_the_address_and_key_come_from_the_environment(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.expect("ListModels", model_service_pb2.ListModelsResponse())
    server.expect("GetEngineStat", engine_service_pb2.GetEngineStatResponse())
    monkeypatch.setenv("HEADRACE_ADDRESS", server.address)
    monkeypatch.setenv("HEADRACE_API_KEY", "k1")
    assert cli.main(["models"]) == 0
