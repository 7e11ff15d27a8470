"""ARCHITECTURE.md lists every folder of the product, and pages name files that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from folder_table import PAGE, folders, with_table

ROOT = Path(__file__).parents[2]
MOST_MODULES = 20
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_architecture_lists_every_folder() -> None:
    """`make folders` writes the table."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)


def test_no_folder_holds_more_than_twenty_modules() -> None:
    """Neither of the product nor of the measurements."""
    measuring = {path.parent for path in (ROOT / "bench").rglob("*.py")}
    crowded = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in {*folders(), *measuring}}
    assert {name: count for name, count in crowded.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "README.md", *(str(path.relative_to(ROOT)) for path in PAGES)])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:py|h|cpp|cu|inl|proto|sh|toml))`", text))
    files = [f"/{path}" for path in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()]
    made = {"native/abi.py", "keys.toml"}
    assert {name for name in named - made if not any(path.endswith(f"/{name}") for path in files)} == set()
