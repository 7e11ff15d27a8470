"""The program: its addresses, its signals, its log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import headrace_engine
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace_proto.v1 import model_service_pb2, model_service_pb2_grpc, request_pb2, request_service_pb2
from headrace_proto.v1.request_service_pb2_grpc import RequestServiceStub
from support.clocks.waiting import LIMIT

TESTS = Path(__file__).parents[3]
REAL = "headrace_engine.service.program.main"
SCRIPTED = "support.scripted.program"


class Running:
    """A program that runs, and the events that it logged as JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        engine = Path(headrace_engine.__file__).parents[2]
        path = os.pathsep.join(map(str, [engine, TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--log-format", "json", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.events: list[dict[str, Any]] = []
        self._passed: list[dict[str, Any]] = []

    def event(self, name: str) -> dict[str, Any]:
        """The next event of a name, or one that came while another was waited for; everything logged is an event."""
        for event in self._passed:
            if event["event"] == name:
                self._passed.remove(event)
                return event
        for line in self.process.stderr:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == name:
                return self.events[-1]
            self._passed.append(self.events[-1])
        raise AssertionError(f"no {name} in {self.events}")

    def end(self) -> int:
        """The exit status, once the program has ended by itself."""
        status = self.process.wait(LIMIT)
        self.events += map(json.loads, self.process.stderr)
        return status

    def names(self) -> list[str]:
        return [event["event"] for event in self.events]


@pytest.fixture
def run() -> Iterator[Any]:
    programs: list[Running] = []

    def run(module: str, *arguments: str) -> Running:
        programs.append(Running(module, *arguments))
        return programs[-1]

    yield run
    for program in programs:
        program.process.kill()
        program.process.wait()
        program.process.stderr.close()


def health(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT).status


def test_bc194_a_taken_port_ends_the_program_with_one_line(run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        program = run(REAL, "--listen", address)
        assert program.end() == 1
    assert program.names() == ["listen_failed"]
    assert program.events[0]["reason"] == f"cannot listen on {address}: Address already in use"


def test_bc194_two_engines_do_not_share_a_port(run):
    first = run(REAL, "--listen", "127.0.0.1:0")
    address = first.event("listening")["address"]
    second = run(REAL, "--listen", address)
    assert second.end() == 1
    assert address in second.events[0]["reason"]
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == 0


def test_port_0_logs_the_real_port_and_the_engine_answers_there(run):
    program = run(REAL, "--listen", "127.0.0.1:0", "--name", "e7")
    listening = program.event("listening")
    assert listening["engine"] == "e7"
    assert listening["model_roots"] == "none: callers cannot install models by path (--model-root DIR allows it)"
    assert health(listening["address"]) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert health(listening["address"], "headrace.v1.ModelService") == health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(listening["address"]) as channel:
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        assert list(models.ListModels(model_service_pb2.ListModelsRequest(), timeout=LIMIT).models) == []
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 0
    assert program.names() == ["listening", "stopping", "stopped"]


def test_f9_the_log_names_the_model_roots(run, tmp_path):
    program = run(REAL, "--listen", "127.0.0.1:0", "--model-root", str(tmp_path), "--model-root", "/models")
    assert program.event("listening")["model_roots"] == [str(tmp_path), "/models"]


def test_the_log_warns_of_a_model_root_where_no_directory_is(run, tmp_path):
    absent, file = tmp_path / "modles", tmp_path / "smol.gguf"
    file.touch()
    roots = [argument for root in (tmp_path, absent, file) for argument in ("--model-root", str(root))]
    program = run(REAL, "--listen", "127.0.0.1:0", *roots)
    warnings = [program.event("model_root_absent") for _ in (absent, file)]
    assert [warning["model_root"] for warning in warnings] == [str(absent), str(file)]
    assert all("--model-root" in warning["reason"] for warning in warnings)
    program.process.send_signal(signal.SIGINT)
    assert program.end() == 0
    assert program.names().count("model_root_absent") == 2


def test_sigterm_tells_health_first_and_lets_streams_finish(run):
    program = run(SCRIPTED, "--listen", "127.0.0.1:0", "--model", "smol=/models/smol")
    address = program.event("listening")["address"]
    program.event("model_ready")
    with grpc.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        while next(watch).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        stream = RequestServiceStub(channel).GeneratedElements(request_service_pb2.GeneratedElementsRequest(handle="h"))
        found = [next(stream)]
        program.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        found += stream
    assert [list(message.elements.token_ids) for message in found] == [[5], [6], []]
    assert found[-1].end.finish_reason == request_pb2.FINISH_REASON_DRAINED
    assert program.end() == 0
    assert [event["requests"] for event in program.events if event["event"] == "draining"] == [1]


def test_a_second_signal_cuts_what_still_runs(run):
    program = run(SCRIPTED, "--listen", "127.0.0.1:0")
    address = program.event("listening")["address"]
    with grpc.insecure_channel(address) as channel:
        stream = RequestServiceStub(channel).GeneratedElements(
            request_service_pb2.GeneratedElementsRequest(handle="stuck")
        )
        next(stream)
        program.process.send_signal(signal.SIGTERM)
        program.event("draining")
        program.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert program.end() == 1
    assert program.events[-1]["cut"] is True


@pytest.mark.parametrize(("name", "reason"), [("other", "MODEL_EXISTS"), ("broken", "BAD_MODEL")])
def test_a_model_that_cannot_be_installed_ends_the_program(run, name, reason):
    program = run(SCRIPTED, "--listen", "127.0.0.1:0", "--model", "smol=/models/smol", "--model", f"{name}=/m")
    assert program.event("model_not_started")["reason"] == reason
    assert program.end() == 1


def test_a_model_that_cannot_start_leaves_the_others_running(run):
    program = run(SCRIPTED, "--listen", "127.0.0.1:0", "--model", "large=/l", "--model", "smol=/models/smol")
    address = program.event("listening")["address"]
    program.event("model_ready")
    assert health(address) == health_pb2.HealthCheckResponse.SERVING
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 0
    assert "model_not_started" in program.names()


def refused(program: Running) -> str:
    """What a program that did not start says: one line, and exit status 1."""
    assert program.end() == 1
    assert program.names() == ["start_refused"]
    assert "\n" not in program.events[0]["reason"]
    return program.events[0]["reason"]


def test_a_path_without_a_model_ends_the_program_with_one_line(run, tmp_path):
    listen = ("--listen", "127.0.0.1:0")
    assert refused(run(REAL, *listen, "--model", "a=/no/such")) == "/no/such: no such file or directory"
    assert f"{tmp_path.name}: no model" in refused(run(REAL, *listen, "--model", f"a={tmp_path}"))
    (tmp_path / "m.gguf").write_bytes(b"not a GGUF file")
    assert "m.gguf" in refused(run(REAL, *listen, "--model", f"a={tmp_path / 'm.gguf'}"))


@pytest.mark.parametrize(("content", "output"), [(None, "cannot be used (File exists)"), ("{", "repair or remove it")])
def test_an_unusable_state_directory_ends_the_program(run, tmp_path, content, output):
    folder = tmp_path / "state"
    if content is None:
        folder.touch()
    else:
        folder.mkdir()
        (folder / "models.json").write_text(content)
    reason = refused(run(REAL, "--listen", "127.0.0.1:0", "--state-dir", str(folder)))
    assert str(folder) in reason
    assert output in reason


def test_a_state_directory_has_one_engine_until_that_is_gone(run, tmp_path):
    arguments = ("--listen", "127.0.0.1:0", "--state-dir", str(tmp_path))
    first = run(REAL, *arguments)
    first.event("listening")
    assert f"state directory {tmp_path} is in use by another engine" in refused(run(REAL, *arguments))
    first.process.kill()
    first.process.wait(LIMIT)
    run(REAL, *arguments).event("listening")
