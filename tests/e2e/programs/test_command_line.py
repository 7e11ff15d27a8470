"""The command line as people use it: real processes, pipes and signals, against a real gateway and engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client
from headrace.cli.main import CLOSED_STDOUT
from support.clocks.waiting import LIMIT, wait_until
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import engine_server, gateway_server

MAX_LENGTH = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide in the middle, so that its warm-up can be seen and its answers can be interrupted."""
    path = tmp_path_factory.mktemp("command_line") / "tiny"
    return make_tiny_llama(path, max_position_embeddings=512, intermediate_size=16_384)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A gateway before an engine without models."""
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        yield gateway.address


@pytest.fixture
def model(address: str, folder: Path) -> Iterator[str]:
    """A running model."""
    with Client(address) as client:
        client.install_model("tiny", path=str(folder), max_batch=2, max_length=MAX_LENGTH, num_threads=1)
        client.start_model("tiny")
        yield "tiny"
        client.stop_model("tiny")
        client.release_model("tiny")


def headrace(address: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """One command."""
    command, *rest = arguments
    line = [sys.executable, "-m", "headrace.cli", command, "--address", address, *rest]
    return subprocess.run(line, input=text, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_a_model_from_install_to_release(address: str, folder: Path) -> None:
    """Every state refuses what does not fit it, and names the command that does."""
    done = headrace(address, "start", "mine")
    assert (done.returncode, done.stdout) == (1, "")
    assert "[UNKNOWN_MODEL]" in done.stderr
    done = headrace(address, "install", "mine", str(folder), "-o", "max_length=64", "-o", "num_threads=1")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "INITIAL mine on e1")
    assert "headrace start mine" in headrace(address, "chat", "mine", text="Hi\n").stderr
    assert "headrace start mine" in headrace(address, "generate", "mine", "Hi").stderr
    done = headrace(address, "start", "mine")
    assert done.returncode == 0
    *phases, last = done.stderr.splitlines()
    assert phases  # A phase that is over before anybody looks is not shown.
    assert {"mine  e1  starting", "mine  e1  loading", "mine  e1  warming up"}.issuperset(phases)
    assert last.startswith("RUNNING mine on e1: ")
    assert headrace(address, "models").stdout.startswith("mine\te1\tRUNNING\t")
    done = headrace(address, "release", "mine")
    assert done.returncode == 1
    assert 'model "mine" is RUNNING: stop it first (headrace stop mine). ' in done.stderr
    assert headrace(address, "stop", "mine").stderr.endswith("STOPPED mine on e1\n")
    assert headrace(address, "release", "mine").stderr.endswith("RELEASED mine on e1\n")


def test_a_model_that_failed_says_why_and_what_helps(address: str) -> None:
    done = headrace(address, "install", "bad", "/nowhere/model")
    assert done.returncode == 1
    assert "(headrace install bad PATH replaces it, headrace release bad frees the name)" in done.stderr
    assert "/nowhere/model: no such file or directory" in headrace(address, "models").stdout
    assert headrace(address, "release", "bad").returncode == 0


def test_an_answer_that_is_cut_is_told_beside_it(address: str, model: str) -> None:
    done = headrace(address, "generate", model, "Hi", "-o", "max_new_tokens=4", "-o", "ignore_eos=true")
    assert done.returncode == 0
    assert done.stderr == "(cut after 4 tokens: set another limit with -o max_new_tokens=…)\n"
    done = headrace(address, "generate", model, "Hi", "-o", "ignore_eos=true")
    assert done.stderr == f"(cut: prompt and answer reached max_length = {MAX_LENGTH} tokens)\n"


def test_a_conversation_too_long_goes_on_after_clear(address: str, model: str) -> None:
    lines = ["Hi", "word " * MAX_LENGTH, "/clear", "Hi"]
    text = "".join(f"{line}\n" for line in lines)
    done = headrace(address, "chat", model, "-o", "max_new_tokens=4", "-o", "do_sample=false", text=text)
    assert done.returncode == 1
    assert done.stderr.count("[PROMPT_TOO_LONG") == 1
    assert "(the message was dropped: write a shorter one, or start over with /clear)" in done.stderr
    assert done.stderr.count(" tok/s") == 2
    assert done.stdout == done.stdout[: len(done.stdout) // 2] * 2, "the second answer is the first one, begun anew"


def test_a_closed_stdout_ends_generate_and_releases_all(address: str, model: str) -> None:
    line = [
        sys.executable,
        "-m",
        "headrace.cli",
        "generate",
        model,
        "Hi",
        "--address",
        address,
        "-o",
        "ignore_eos=true",
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(LIMIT) == CLOSED_STDOUT
    with Client(address) as client:
        wait_until(lambda: not client.list_requests(), "the request was not released")


def test_bench_measures_a_running_model(address: str, model: str, tmp_path: Path) -> None:
    out, chart = tmp_path / "out.json", tmp_path / "chart.svg"
    lengths = ("--prompt-tokens", "4-8", "--output-tokens", "5", "--shared-tokens", "2", "--seed", "3")
    files = ("--json", str(out), "--chart", str(chart))
    done = headrace(address, "bench", model, "--requests", "6", "--concurrency", "2", *lengths, *files)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("requests  6 completed in ")
    assert "30 generated" in done.stdout
    found = json.loads(out.read_text())
    assert [sum(count for _, count in one["arrivals"]) for one in found["requests"]] == [5] * 6
    assert all(4 <= one["prompt_tokens"] <= 8 for one in found["requests"])
    assert chart.read_text().count("<svg") == 1
    with Client(address) as client:
        wait_until(lambda: not client.list_requests(), "a request is left")


def test_bench_counts_failures_by_reason(address: str, model: str) -> None:
    done = headrace(address, "bench", model, "--requests", "2", "--rate", "100")
    assert done.returncode == 1
    assert "2 failed (2 PROMPT_TOO_LONG)" in done.stdout
    assert f"max_length {MAX_LENGTH}" in done.stderr


def test_bench_ends_when_it_is_interrupted(address: str, model: str) -> None:
    line = [sys.executable, "-m", "headrace.cli", "bench", "--address", address, model, "--seconds", "600"]
    bench = subprocess.Popen(
        [*line, "--prompt-tokens", "4", "--output-tokens", "100"], stdout=subprocess.PIPE, text=True
    )
    with Client(address) as client:
        wait_until(lambda: any(one.sequences[0].generated_length for one in client.list_requests()), "nothing runs")
        bench.send_signal(signal.SIGINT)
        text, _ = bench.communicate(timeout=LIMIT)
        assert bench.returncode == 130
        assert text.startswith("requests  ")
        wait_until(lambda: not client.list_requests(), "a request is left")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--requests", "0"), "--requests"),
        (("--rate", "nan"), "--rate"),
        (("--prompt-tokens", "9-3"), "--prompt-tokens"),
        (("--requests", "1", "--seconds", "1"), "choose one"),
        (("--shared-tokens", "300"), "shortest prompt, 256"),
    ],
)
def test_bench_names_what_is_wrong(address: str, model: str, arguments: tuple[str, ...], problem: str) -> None:
    done = headrace(address, "bench", model, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
