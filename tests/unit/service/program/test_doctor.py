"""The doctor: what it finds of the machine, the backends, ports and folders, and how it says so."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from headrace_engine.backends.host import memory_limit
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.environment import ISA_VARIABLE
from headrace_engine.native import load, machine_isas
from headrace_engine.process.devices import has_cuda
from headrace_engine.service.program.arguments import parse_arguments
from headrace_engine.service.program.doctor.backends import examine_backends
from headrace_engine.service.program.doctor.findings import Finding, all_work, as_json, as_table
from headrace_engine.service.program.doctor.machine import examine_machine
from headrace_engine.service.program.doctor.places import examine_folders, examine_ports

without_cuda = pytest.mark.skipif(has_cuda(), reason="this machine has a CUDA device")


def backends(asked: str) -> dict[str, Finding]:
    return {finding.subject.removeprefix("backend "): finding for finding in examine_backends(asked)}


def machine() -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine_machine()}


def test_a_table_has_a_line_for_each_finding():
    found = [Finding("port", "is free"), Finding("model", "no such file", works=False), Finding("cupy", "absent", None)]
    assert as_table(found).splitlines() == ["ok  port   is free", "NO  model  no such file", "-   cupy   absent"]


def test_a_table_obeys_no_text_that_was_found():
    assert as_table([Finding("model \x1b[2J", "two\nlines")]) == "ok  model \\x1b[2J  two\\nlines"


def test_json_says_the_same():
    found = [Finding("memory", "1.0 KiB", None, {"limit": 1024}), Finding("port", "taken", works=False)]
    assert json.loads(as_json(found)) == {
        "works": False,
        "findings": [
            {"subject": "memory", "text": "1.0 KiB", "works": None, "facts": {"limit": 1024}},
            {"subject": "port", "text": "taken", "works": False, "facts": {}},
        ],
    }
    assert json.loads(as_json(found[:1]))["works"] is True


def test_what_nothing_needs_is_no_failure():
    assert all_work([Finding("cupy", "absent", None), Finding("port", "is free")])
    assert not all_work([Finding("port", "taken", works=False)])


def test_every_level_of_the_processor_can_be_forced(monkeypatch: pytest.MonkeyPatch):
    for isa in machine_isas(load("cpu")):
        monkeypatch.setenv(ISA_VARIABLE, isa.name.lower())
        facts = machine()["processor"].facts
        assert (facts["taken"], facts["forced"]) == (isa.name.lower(), isa.name.lower())
    monkeypatch.delenv(ISA_VARIABLE)
    facts = machine()["processor"].facts
    assert (facts["taken"], facts["forced"]) == (facts["levels"][-1], "")


def test_a_level_that_the_processor_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ISA_VARIABLE, "sse9")
    found = backends("cpu")["cpu"]
    assert found.works is False
    assert 'HEADRACE_ISA = "sse9"' in found.text
    assert "allowed: avx2" in found.text


def test_memory_is_what_engines_count_with():
    facts = machine()["memory"].facts
    assert facts["limit"] == memory_limit() <= facts["host"]


@without_cuda
def test_auto_without_a_cuda_device():
    found = backends("auto")
    assert [name for name, each in found.items() if each.facts["taken"]] == ["cpu"]
    assert (found["cpu"].works, found["torch"].works, found["cuda"].works) == (True, None, None)
    assert "not taken: auto does where there is a CUDA device, and " in found["torch"].text
    assert "--backend cuda asks for it" in found["cuda"].text


def test_auto_with_a_cuda_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace_engine.process.run.has_cuda", lambda: True)
    found = backends("auto")
    assert found["torch"].text == "taken (--backend auto)"
    assert "auto takes torch, as there is a CUDA device" in found["cpu"].text


@without_cuda
def test_a_backend_that_is_asked_for_and_cannot_compute():
    found = backends("cuda")
    assert found["cuda"].works is False
    assert "does not work here: " in found["cuda"].text
    assert found["cpu"].text == "not taken: --backend cuda is asked for"


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = parse_arguments(["--doctor", "--listen", "127.0.0.1:0", "--metrics", address])
        port, metrics = examine_ports(given.listen, given.metrics)
    assert port.works
    assert (metrics.subject, metrics.works) == ("metrics port", False)
    assert metrics.text.startswith(f"cannot listen on {address}: ")


def test_folders_that_are_there_and_that_are_not(tmp_path: Path):
    (tmp_path / "file").touch()
    options = EngineOptions(
        model_roots=(tmp_path, tmp_path / "none", tmp_path / "file"), write_roots=(), state_dir=tmp_path / "a" / "state"
    )
    there, absent, file, state = examine_folders(options)
    assert (there.works, there.text) == (True, f"{tmp_path}: can be read")
    assert (absent.works, file.works) == (False, False)
    assert "no such directory" in absent.text
    assert (state.subject, state.works) == ("state directory", True)
    assert not (tmp_path / "a").exists()


def test_a_write_root_is_examined_once_and_for_writing(tmp_path: Path):
    given = parse_arguments(["--doctor", "--write-root", str(tmp_path)])
    (found,) = examine_folders(given.engine)
    assert (found.subject, found.facts["writable"]) == ("write root", True)


def test_a_state_directory_below_a_file(tmp_path: Path):
    (tmp_path / "file").touch()
    (found,) = examine_folders(EngineOptions(model_roots=(), state_dir=tmp_path / "file" / "state"))
    assert found.works is False


def test_settings_hold_for_the_examined_model():
    given = parse_arguments(["--doctor", "/m", "--json", "--max-batch", "3", "--model", "b=/n"])
    assert (given.doctor, given.doctor_json) == (True, True)
    assert [(each.model_name, each.model_path, each.max_batch) for each in given.models] == [
        ("b", "/n", 3),
        ("examined", "/m", 3),
    ]


def test_json_without_a_doctor(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--json"])
    assert ended.value.code == 2
    assert "there is no --doctor" in capsys.readouterr().err
