"""Models on the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Any_
from headrace.cli import models as cli_models
from headrace.cli import progress as cli_progress
from headrace_proto.v1 import engine_service_pb2, model_pb2, model_service_pb2, runtime_pb2, stat_pb2, status_pb2
from support.clocks.waiting import LIMIT
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from unit.client.cli.command_line import info, run

INSTALLING, INITIAL = model_pb2.MODEL_STATE_INSTALLING, model_pb2.MODEL_STATE_INITIAL
STARTING, RUNNING = model_pb2.MODEL_STATE_STARTING, model_pb2.MODEL_STATE_RUNNING
STOPPING, STOPPED = model_pb2.MODEL_STATE_STOPPING, model_pb2.MODEL_STATE_STOPPED
FAILED, RELEASED = model_pb2.MODEL_STATE_FAILED, model_pb2.MODEL_STATE_RELEASED
NO_ROOM = status_pb2.Status(code=9, message="no room:\nlower max_batch")


def script_models(server: ScriptedServer) -> None:
    """Three models on an engine."""
    models = [info(RUNNING), info(INITIAL, model_name="big"), info(FAILED, model_name="huge", failure=NO_ROOM)]
    stats = [stat_pb2.EngineStat(model_name="smol", engine="e1", tokens_total=65536, running=3, waiting=1)]
    server.expect("ListModels", model_service_pb2.ListModelsResponse(models=models))
    server.expect("GetEngineStat", engine_service_pb2.GetEngineStatResponse(stats=stats))


def test_models_on_a_pipe_are_columns_with_the_failure(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    script_models(server)
    assert run(server, "models") == 0
    assert capsys.readouterr().out.splitlines() == [
        "smol\te1\tRUNNING\t65,536\t3\t1\t",
        "big\te1\tINITIAL\t\t\t\t",
        "huge\te1\tFAILED\t\t\t\tno room: lower max_batch. [FAILED_PRECONDITION]",
    ]


def test_models_on_a_terminal_are_a_table_with_advice(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(server)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(server, "models") == 0
    out, err = capsys.readouterr()
    assert all(word in out for word in ("KV tokens", "65,536", "smol", "INITIAL"))
    assert err.startswith(
        "FAILED huge on e1: no room: lower max_batch. [FAILED_PRECONDITION] (headrace install huge PATH"
    )


class Notes:
    """What was noted, in the order in which it came; to be waited for from other threads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def add(self, line: str, style: str = "") -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, line: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: line in self.lines, LIMIT), self.lines


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """What the command notes."""
    notes = Notes()
    for module in (cli_models, cli_progress):
        monkeypatch.setattr(module, "note", notes.add)
    return notes


def watch(*infos: model_pb2.ModelInfo) -> list[Any]:
    """A stream of changes that goes on."""
    return [*[model_service_pb2.WatchModelResponse(model=one) for one in infos], Hang()]


def once_noted(notes: Notes, line: str, answer: Any) -> Callable[[Any], Any]:
    """A call that answers once a line was noted."""

    def reply(_: Any) -> Any:
        notes.wait_for(line)
        return answer

    return reply


def progress(phase: int, **fields: Any) -> model_pb2.ModelProgress:
    """What a verb does now."""
    return model_pb2.ModelProgress(phase=phase, **fields)  # type: ignore[arg-type]


def test_install_and_start_show_how_far_they_are(server: ScriptedServer, notes: Notes) -> None:
    reading, loading = progress(model_pb2.MODEL_PHASE_READING), progress(model_pb2.MODEL_PHASE_LOADING, bytes_total=2)
    effective = runtime_pb2.EffectiveConfig(kv_tokens=65536, kv_bytes=1503238554)
    installed = model_service_pb2.InstallModelResponse(engines=[info(INITIAL)])
    started = model_service_pb2.StartModelResponse(engines=[info(RUNNING, effective=effective)])
    server.expect(
        "WatchModel",
        watch(info(RUNNING, model_name="other"), info(INSTALLING, progress=reading)),
        watch(info(INITIAL), info(STARTING), info(STARTING, progress=loading), info(STARTING, progress=loading)),
    )
    server.expect("InstallModel", once_noted(notes, "smol  e1  reading", installed))
    server.expect("StartModel", once_noted(notes, "smol  e1  loading", started))
    assert run(server, "install", "smol", "x.gguf", "--start", "-o", "max_batch=8", "--engine", "e1") == 0
    assert notes.lines == [
        "smol  e1  reading",
        "INITIAL smol on e1",
        "smol  e1  starting",
        "smol  e1  loading",
        "RUNNING smol on e1: 65,536 tokens of KV cache (1.4 GiB)",
    ]
    request = server.requests("InstallModel")[0]
    assert (request.config.max_batch, list(request.engine_ids), request.no_wait) == (8, ["e1"], False)


def test_stop_shows_that_it_drains_and_release_frees(server: ScriptedServer, notes: Notes) -> None:
    draining = info(STOPPING, progress=progress(model_pb2.MODEL_PHASE_DRAINING))
    server.expect("WatchModel", watch(info(RUNNING), draining), watch(info(STOPPED)))
    stopped = model_service_pb2.StopModelResponse(engines=[info(STOPPED)])
    server.expect("StopModel", once_noted(notes, "smol  e1  draining", stopped))

    def release(_: Any) -> Any:
        server.wait_for("WatchModel", 2)
        return model_service_pb2.ReleaseModelResponse(engines=[info(RELEASED)])

    server.expect("ReleaseModel", release)
    assert run(server, "stop", "smol") == 0
    assert run(server, "release", "smol") == 0
    assert notes.lines == ["smol  e1  draining", "STOPPED smol on e1", "RELEASED smol on e1"]


def test_progress_goes_on_after_its_connection_broke(
    server: ScriptedServer, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_progress, "_PAUSE", 0.0)
    server.expect("WatchModel", [Failure(grpc.StatusCode.UNAVAILABLE)], watch(info(STARTING)))
    started = model_service_pb2.StartModelResponse(engines=[info(RUNNING)])
    server.expect("StartModel", once_noted(notes, "smol  e1  starting", started))
    assert run(server, "start", "smol") == 0


def test_an_install_that_fails_says_why_and_exits_with_1(
    server: ScriptedServer, notes: Notes, capsys: pytest.CaptureFixture[str]
) -> None:
    server.expect("WatchModel", watch(info(INSTALLING)))

    def fail(_: Any) -> Any:
        notes.wait_for("smol  e1  installing")
        return Failure(grpc.StatusCode.FAILED_PRECONDITION, "x.gguf is no model", reason="BAD_MODEL")

    server.expect("InstallModel", fail)
    assert run(server, "install", "smol", "x.gguf", "--start") == 1
    assert capsys.readouterr().err.startswith("headrace: x.gguf is no model. [BAD_MODEL] (headrace install smol PATH")


def test_a_start_failing_on_one_engine_names_it_and_exits_with_1(server: ScriptedServer, notes: Notes) -> None:
    server.expect("WatchModel", watch(info(STARTING)))
    engines = [info(RUNNING), info(FAILED, engine="e2", failure=NO_ROOM)]
    answer = model_service_pb2.StartModelResponse(engines=engines)
    server.expect("StartModel", once_noted(notes, "smol  e1  starting", answer))
    assert run(server, "start", "smol") == 1
    assert notes.lines[1] == "RUNNING smol on e1"
    assert notes.lines[2].startswith("FAILED smol on e2: no room: lower max_batch. [FAILED_PRECONDITION]")


def test_an_interrupt_ends_the_wait_but_not_the_engines_work(server: ScriptedServer) -> None:
    over = threading.Event()
    server.expect("WatchModel", watch(info(STARTING)))
    server.expect("StartModel", lambda _: over.wait(LIMIT) and model_service_pb2.StartModelResponse())
    line = [sys.executable, "-m", "headrace.cli", "start", "smol", "--address", server.address]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.readline() == "smol  e1  starting\n"
        server.wait_for("StartModel")
        process.send_signal(signal.SIGINT)
        words = process.stderr.read()
    over.set()
    assert process.wait(LIMIT) == 130
    assert words == ("Stopped waiting; the engines go on with smol: headrace models shows its state.\n")


def test_an_engine_that_is_down_is_shown_in_its_row(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    reason = status_pb2.ErrorInfo(reason="ENGINE_UNREACHABLE", domain="headrace")
    detail = Any_(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=reason.SerializeToString())
    text = 'engine "e1" does not answer; its models and requests may still exist, so try again in 1 s'
    away = info(model_pb2.MODEL_STATE_UNSPECIFIED, failure=status_pb2.Status(code=14, message=text, details=[detail]))
    server.expect("ListModels", model_service_pb2.ListModelsResponse(models=[away]))
    server.expect("GetEngineStat", engine_service_pb2.GetEngineStatResponse())
    assert run(server, "models") == 0
    assert capsys.readouterr().out == 'smol\te1\tUNKNOWN\t\t\t\tengine "e1" does not answer\n'
