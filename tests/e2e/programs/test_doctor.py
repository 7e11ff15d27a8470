"""`headrace-engine --doctor` as people run it: real processes, and models that an engine runs beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headrace import Client
from support.clocks.waiting import LIMIT
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import engine_server

SETTINGS = ("--num-threads", "1", "--max-length", "64", "--max-batch", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("doctor") / "tiny")


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "headrace_engine", "--listen", "127.0.0.1:0", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)


def found(done: subprocess.CompletedProcess[str], subject: str) -> list[dict[str, Any]]:
    """What was found about a subject, in JSON."""
    return [each for each in json.loads(done.stdout)["findings"] if each["subject"] == subject]


def test_it_finds_what_an_engine_makes_of_the_model(folder: Path) -> None:
    done = doctor("--doctor", str(folder), "--json", *SETTINGS)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["works"] is True
    files, running = found(done, "model examined")
    with (
        engine_server("e1", "--model", f"tiny={folder}", *SETTINGS) as engine,
        Client(engine.address) as client,
    ):
        client.start_model("tiny")
        effective = client.get_model("tiny")[0].effective
        description = client.inspect_model(str(folder))
        address = engine.address
        again = doctor("--doctor", "--listen", address)
    assert effective is not None
    for name in ("weight_bytes", "workspace_bytes", "kv_bytes", "kv_tokens"):
        assert running["facts"][name] == getattr(effective, name), name
    assert running["facts"]["devices"] == list(effective.devices)
    assert (running["facts"]["max_length"], running["facts"]["max_batch"]) == (64, 3)
    assert running["facts"]["whole_sequences"] == effective.kv_tokens // 64
    assert files["facts"]["architecture"] == description.architecture
    assert files["facts"]["kv_bytes_per_token"] == description.kv_bytes_per_token
    assert again.returncode == 1
    assert f"NO  port           cannot listen on {address}: " in again.stdout


def test_models_that_cannot_run_say_why(folder: Path, tmp_path: Path) -> None:
    unknown = Path(shutil.copytree(folder, tmp_path / "unknown"))
    config = json.loads((unknown / "config.json").read_text(encoding="utf-8"))
    (unknown / "config.json").write_text(json.dumps(config | {"architectures": ["NonesuchForCausalLM"]}))
    done = doctor("--doctor", str(unknown), "--json", "--model", f"large={folder}", "--num-blocks", "2000000000")
    assert (done.returncode, done.stderr) == (1, "")
    (refused,) = found(done, "model examined")
    assert (refused["works"], refused["facts"]["reason"]) == (False, "BAD_MODEL")
    assert "NonesuchForCausalLM" in refused["text"]
    assert "\n" not in refused["text"]
    _, large = found(done, "model large")
    assert (large["works"], large["facts"]["reason"]) == (False, "OUT_OF_MEMORY")
    assert "lower num_blocks to" in large["text"]


def test_a_wrong_command_line(folder: Path) -> None:
    done = doctor("--doctor", str(folder), "--max-batch", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--max-batch" in done.stderr
