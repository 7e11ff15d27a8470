"""Names of tests: short enough for a line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT = 60


def names() -> Iterator[tuple[str, str]]:
    """File and name of every test."""
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield str(file.relative_to(TESTS)), node.name


def test_no_name_is_longer_than_sixty_characters() -> None:
    assert [f"{file}::{name}" for file, name in names() if len(name) > LIMIT] == []
