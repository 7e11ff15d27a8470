"""What the README and the page about the client show, run as it stands against a tiny model."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client
from support.clocks.waiting import LIMIT
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import Server, engine_server, gateway_server

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
CLIENT = (ROOT / "docs/client.md").read_text()
RUNNING = (ROOT / "docs/running.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README + CLIENT, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^headrace [^-].*$", README, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("readme") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Server]:
    with engine_server("e1", "--drain-limit", "1") as engine, gateway_server({"e1": engine.address}) as gateway:
        with Client(gateway.address) as client:
            client.install_model("smol", path=str(folder), max_batch=4, num_threads=1, max_length=512)
            client.start_model("smol")
        yield gateway


def test_there_is_something_to_run() -> None:
    assert len(BLOCKS) >= 2
    assert {line.split()[1] for line in COMMANDS} >= {"chat", "generate", "models", "install"}


def test_every_python_example_runs(gateway: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in BLOCKS:
        text = re.sub(r"localhost:7070|gw1:7070,gw2:7070", gateway.address, block)
        text = re.sub(r'"/models/[^"]*"', repr(str(folder)), text)
        code = compile(text, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, {"__name__": "readme"})
        if inspect.iscoroutine(result):
            asyncio.run(result)
    assert capsys.readouterr().out


def test_every_command_runs(gateway: Server, folder: Path) -> None:
    program = str(Path(sys.executable).with_name("headrace"))
    for line in COMMANDS:
        words = [{"NAME": "other", "PATH": str(folder)}.get(word, word) for word in shlex.split(line, comments=True)]
        done = subprocess.run(
            [program, *words[1:]],
            input="Hello\n",
            env=os.environ | {"HEADRACE_ADDRESS": gateway.address},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_file_that_a_page_links_to_is_there(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_every_make_task_that_it_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    tasks = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    (parts,) = re.findall(r"^PARTS := (.*)", makefile, re.MULTILINE)
    tasks |= {f"test-{part}" for part in parts.split()}
    named = re.findall(r"(?:^|`)make ((?:[a-z-]+ ?)+)", README + RUNNING, re.MULTILINE)
    assert {"run", "test", "models", "images"} <= set(" ".join(named).split()) <= tasks
