"""The grpcurl lines of docs/grpcurl.md, run as they stand."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace import Client
from support.clocks.waiting import LIMIT
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import Server, engine_server, gateway_server

PAGE = Path(__file__).parents[3] / "docs/grpcurl.md"
GRPCURL = Path(sys.executable).parent / "grpcurl"


def _lines() -> list[str]:
    return re.findall(r"^grpcurl .*$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("grpcurl") / "tiny")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Server]:
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            client.install_model("smol", path=str(folder), max_batch=4, num_threads=1)
            client.start_model("smol")
        yield gateway


def _run(line: str, gateway: Server, **replaced: str) -> str:
    line = line.replace("localhost:7070", gateway.address)
    for name, value in replaced.items():
        line = line.replace(name, value)
    command = [str(GRPCURL), *shlex.split(line)[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _messages(output: str) -> list[dict[str, Any]]:
    """The JSON messages that grpcurl printed one after the other."""
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(output.rstrip()):
        message, place = decoder.raw_decode(output, place)
        found.append(message)
        place += len(output[place:]) - len(output[place:].lstrip())
    return found


def test_the_readme_shows_every_kind_of_call() -> None:
    text = "\n".join(_lines())
    for part in (
        " list",
        " describe ",
        "/Generate",
        "/StartRequest",
        "/GeneratedElements",
        "/InstallModel",
        "Health/Check",
    ):
        assert part in text


def test_every_line_of_the_readme_works(gateway: Server, folder: Path) -> None:
    handle = ""
    for line in _lines():
        output = _run(line, gateway, HANDLE=handle, MODEL_PATH=str(folder))
        if line.endswith("/StartRequest"):
            handle = _messages(output)[0]["request"]["handle"]
        elif line.endswith("/GeneratedElements"):
            assert _messages(output)[-1]["end"]["finish_reason"].startswith("FINISH_REASON_")
        elif line.endswith(" list"):
            assert "headrace.v1.RequestService" in output.split()
        elif line.endswith("Health/Check"):
            assert _messages(output)[0]["status"] == "SERVING"
        elif line.endswith("/InstallModel"):
            assert _messages(output)[0]["engines"][0]["state"] == "MODEL_STATE_INITIAL"


def test_bc183_generate_is_readable(gateway: Server) -> None:
    """Text beside ids, enums by name, a seed as number and as string, nothing in base64."""
    for seed in ("7", '"7"'):
        line = (
            "grpcurl -plaintext -d "
            f"""'{{"model_name": "smol", "text": "Hello", "config": {{"max_new_tokens": 8, "seed": {seed}}}}}'"""
            " localhost:7070 headrace.v1.RequestService/Generate"
        )
        messages = _messages(_run(line, gateway))
        assert messages[0]["request"]["seed"] == "7"
        ids = [token for message in messages for token in message.get("elements", {}).get("token_ids", [])]
        assert 1 <= len(ids) <= 8
        assert messages[-1]["status"] == "GENERATE_STATUS_FINISHED"
        assert messages[-1]["end"]["finish_reason"] in ("FINISH_REASON_MAX_LENGTH", "FINISH_REASON_EOS")


def test_refusals_are_readable(gateway: Server) -> None:
    command = [
        str(GRPCURL), "-plaintext", "-d", '{"model_name": "smol", "text": "x", "config": {"top_p": 3}}',
        gateway.address, "headrace.v1.RequestService/StartRequest",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0
    assert "InvalidArgument" in done.stderr
    assert "top_p" in done.stderr


@pytest.mark.parametrize(
    ("call", "details"),
    [
        ('{"model_name": "smol", "text": "x", "config": {"top_p": 3}} headrace.v1.RequestService/StartRequest',
         ('"reason":"INVALID_FIELD"', '"field":"config.top_p"')),
        ('{"model_name": "none"} headrace.v1.ModelService/GetModel', ('"reason":"UNKNOWN_MODEL"',)),
        ('{"config": {"model_name": "smol"}} headrace.v1.ModelService/InstallModel', ('"domain":"headrace"',)),
    ],
)  # fmt: skip
def test_a_details_of_failures_are_readable(gateway: Server, call: str, details: tuple[str, ...]) -> None:
    """Reflection knows google.rpc, so that a tool that shows a detail can say what is in it."""
    data, _, method = call.rpartition(" ")
    command = [str(GRPCURL), "-plaintext", "-d", data, gateway.address, method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0
    assert all(detail in done.stderr for detail in details), done.stderr
    assert "not recognized" not in done.stderr
