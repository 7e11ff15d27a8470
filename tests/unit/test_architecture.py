"""ARCHITECTURE.md lists every folder of the product, and pages name files that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("proto/headrace_proto", "client/headrace", "gateway/headrace_gateway", "engine_service/headrace_engine")
MOST_MODULES = 20
PAGES = sorted((ROOT / "docs").glob("*.md"))


def folders() -> Iterator[Path]:
    """Packages of the product; generated code is none of them."""
    for part in PRODUCT:
        yield from sorted(path.parent for path in (ROOT / part).rglob("__init__.py") if path.parent.name != "v1")


def row(folder: Path) -> str:
    """The line of the table for one folder."""
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return f"| `{folder.relative_to(ROOT).as_posix()}/` | {said.splitlines()[0]} |"


def test_architecture_lists_every_folder() -> None:
    """The table is made of these rows: paste them between the marks."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    between = re.search(r"<!-- folders -->\n(.*)<!-- /folders -->", page, re.DOTALL)
    assert between is not None
    rows = "\n".join(("| folder | |", "|---|---|", *map(row, folders())))
    assert between[1].strip() == rows


def test_no_folder_holds_more_than_twenty_modules() -> None:
    crowded = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders()}
    assert {name: count for name, count in crowded.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "README.md", *(str(path.relative_to(ROOT)) for path in PAGES)])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:py|h|cpp|cu|inl|proto|sh|toml))`", text))
    files = [f"/{path}" for path in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()]
    made = {"native/abi.py"}
    assert {name for name in named - made if not any(path.endswith(f"/{name}") for path in files)} == set()
