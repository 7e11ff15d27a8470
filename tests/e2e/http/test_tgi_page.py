"""What docs/migrating-from-tgi.md says to type is understood."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from headrace import Client
from headrace_engine.service.program.arguments import parse_arguments
from support.servers.http_servers import HttpGateway

PAGE = (Path(__file__).parents[3] / "docs" / "migrating-from-tgi.md").read_text(encoding="utf-8")
CURLS = re.findall(r"^curl http://127\.0\.0\.1:8080(\S+) .*\\\n +-d '(.*)'$", PAGE, re.MULTILINE)
SETTINGS = [
    shlex.split(text)[1] for text in re.findall(r"`(--set [^`…]+)`", PAGE) if "=N" not in text and "FIELD" not in text
]


def test_the_page_has_what_is_tried() -> None:
    assert (len(CURLS), PAGE.count("\ncurl ")) == (6, 6)
    assert len(SETTINGS) >= 5


@pytest.mark.parametrize(("path", "body"), CURLS)
def test_its_requests_are_answered(gateway: HttpGateway, path: str, body: str) -> None:
    request = json.loads(body.replace('"qwen"', '"tiny"'))
    status, _, answer = gateway.ask("POST", path, request)
    assert status == 200, answer
    found = json.loads(answer)
    if path.endswith("/Tokenize"):
        assert found["tokenIds"]
        return
    (choice,) = found["choices"]
    assert choice["finish_reason"] in ("stop", "length")
    if "logprobs" in request:
        assert choice["logprobs"]
    if "response_format" in request:
        assert re.fullmatch(request["response_format"]["regex"], choice["text"])


def test_a_temperature_of_0_is_greedy(gateway: HttpGateway, grpc: Client) -> None:
    request = json.loads(CURLS[0][1].replace('"qwen"', '"tiny"'))
    _, _, answer = gateway.ask("POST", CURLS[0][0], request)
    parts = grpc.generate("tiny", request["prompt"], do_sample=False, max_new_tokens=20, stop_words=["\n"])
    assert json.loads(answer)["choices"][0]["text"] == "".join(parts)


def test_its_command_line_is_one() -> None:
    (line,) = re.findall(r"^headrace-engine (--listen .*)$", PAGE, re.MULTILINE)
    given = parse_arguments(shlex.split(line))
    assert [(each.model_name, each.max_length, each.max_batch) for each in given.models] == [("qwen", 8192, 16)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_setting_is_accepted(setting: str) -> None:
    given = parse_arguments(["--model", "qwen=/models/qwen", "--set", setting])
    assert getattr(given.models[0], setting.partition("=")[0])


def test_each_option_of_the_engine_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    table = PAGE.partition("| TGI | `headrace-engine` |")[2].partition("| TGI | `headrace-gateway` |")[0]
    ours = [row.split(" | ")[-1] for row in table.splitlines() if row.startswith("| `")]
    named = {option for cell in ours for option in re.findall(r"`(--[a-z-]+)", cell)}
    assert "--max-length" in named
    assert named <= known
