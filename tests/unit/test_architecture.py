"""ARCHITECTURE.md has every folder of the product, with what its package says of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("proto/headrace_proto", "client/headrace", "gateway/headrace_gateway", "engine_service/headrace_engine")
MOST_MODULES = 20


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
