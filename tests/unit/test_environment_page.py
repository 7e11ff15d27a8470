"""docs/environment.md and the code name the same variables, each read in one module."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"HEADRACE_[A-Z_]+|BFC_MEM_RATIO|HF_ENDPOINT")
ROW = re.compile(r"^\| `(\w+)` \| `([\w./-]+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
READ = re.compile(r"environ\.get\(|environ\[|getenv\(")
PROGRAMS = ("client/headrace", "gateway/headrace_gateway", "engine_service/headrace_engine", "deploy", "bench")
COMPOSE = ("docker-compose.yml", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("deploy/compose/*.yml")))


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def modules(*folders: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.splitlines() if path.endswith(".py")]


def names_in(module: str) -> set[str]:
    """The variables that a module has as whole strings, or as keywords of calls."""
    nodes = list(ast.walk(ast.parse(text_of(module))))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    return {text for text in strings | keywords if NAME.fullmatch(text)}


@pytest.fixture(scope="module")
def page() -> dict[str, str]:
    """Who reads each variable, as the page says it."""
    rows = ROW.findall(text_of("docs/environment.md"))
    assert len({name for name, _ in rows}) == len(rows) > 15
    return dict(rows)


def test_the_page_names_what_programs_read_and_where(page: dict[str, str]) -> None:
    found = {(name, module) for module in modules(*PROGRAMS) for name in names_in(module)}
    assert found == {row for row in page.items() if row[1].startswith(PROGRAMS) and row[1].endswith(".py")}


def test_the_page_names_what_containers_are_given(page: dict[str, str]) -> None:
    readers: dict[str, str] = {}
    for path in COMPOSE:
        for name in re.findall(r"\$\{(HEADRACE_\w+):-", text_of(path)):
            readers.setdefault(name, path)
    readers.pop("HEADRACE_LOGITS_PROCESSORS")  # The engine reads it, too.
    assert readers == {name: reader for name, reader in page.items() if reader in COMPOSE}


def test_the_page_names_what_tests_set(page: dict[str, str]) -> None:
    found = {name: module for module in modules("tests") for name in names_in(module)}
    assert set(found) <= set(page)
    assert {row for row in page.items() if row[1].startswith("tests/")} <= set(found.items())


def test_documents_name_no_other_variable(page: dict[str, str]) -> None:
    listed = subprocess.run(["git", "ls-files", "*.md", "*.yml"], cwd=ROOT, check=True, capture_output=True, text=True)
    for path in listed.stdout.splitlines():
        assert set(re.findall(r"\bHEADRACE_[A-Z_]+\b", text_of(path))) <= set(page), path


@pytest.mark.parametrize("folder", PROGRAMS[:3])
def test_a_server_or_client_reads_the_environment_in_one_module(folder: str) -> None:
    readers = [path for path in modules(folder) if READ.search(text_of(path))]
    assert readers in ([f"{folder}/_base/environment.py"], [f"{folder}/environment.py"], [])


def test_values_are_looked_up_by_environment_modules_alone(page: dict[str, str]) -> None:
    owners = {reader for reader in page.values() if reader.endswith("/environment.py")}
    assert owners == {path for path in modules(*PROGRAMS) if path.endswith("/environment.py")}
