"""Names of tests: short enough for a line, and each case that they are named after is explained in CASES.md."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIMIT = 60
_CASES = re.compile(r"test_((?:(?:bc|[abfnt])\d+_)+)")
_LINE = re.compile(r"\| ([a-z]+\d+) \| (.+) \|")


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Names of all tests."""
    trees = (ast.walk(ast.parse(file.read_text())) for file in TESTS.rglob("test_*.py"))
    functions = (node for tree in trees for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in functions if node.name.startswith("test_")]


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, str]]:
    """Cases and sentences of the table."""
    found = (_LINE.fullmatch(line) for line in (TESTS / "CASES.md").read_text().splitlines())
    return [(line[1], line[2]) for line in found if line]


def _key(case: str) -> tuple[str, int]:
    letters = case.rstrip("0123456789")
    return letters, int(case.removeprefix(letters))


def test_no_name_is_longer_than_sixty_characters(names: list[str]) -> None:
    assert [name for name in names if len(name) > LIMIT] == []


def test_each_case_has_a_line_and_each_line_a_test(names: list[str], lines: list[tuple[str, str]]) -> None:
    found = filter(None, (_CASES.match(name) for name in names))
    assert {case for match in found for case in match[1].rstrip("_").split("_")} == {case for case, _ in lines}


def test_the_table_is_sorted_and_has_each_case_once(lines: list[tuple[str, str]]) -> None:
    cases = [case for case, _ in lines]
    assert cases == sorted(set(cases), key=_key)


def test_each_line_is_one_sentence(lines: list[tuple[str, str]]) -> None:
    assert [case for case, text in lines if not re.fullmatch(r"[^.]+(\.\d[^.]*)*\.", text)] == []


def test_no_helper_takes_the_name_of_a_module_of_python() -> None:
    """A helper that runs as a program has its own folder first on Python's path."""
    files = [*TESTS.rglob("*.py"), *(TESTS.parent / "bench").rglob("*.py"), *(TESTS.parent / "deploy").rglob("*.py")]
    assert [file for file in files if file.stem in sys.stdlib_module_names] == []
