"""The pages of results: each command finds its section, replaces that alone, and is started as pages and make say."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.common.page import RESULTS, SECTIONS, Section

ROOT = Path(__file__).parents[3]
STARTED = re.compile(r"-m (bench(?:\.\w+)+)")
PAGE = """by hand
<!-- one: written by `make one` -->
before
<!-- one: end -->
after
<!-- two: written by `make two` -->
other
<!-- two: end -->
"""


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in listed.stdout.splitlines()]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_section_has_its_place_on_its_page(section: Section) -> None:
    page = (RESULTS / section.page).read_text(encoding="utf-8")
    assert "what was measured" in section.replaced(page, "what was measured")


def test_every_place_on_a_page_belongs_to_a_section() -> None:
    places = {
        (page.name, *found)
        for page in RESULTS.glob("*.md")
        for found in re.findall(r"<!-- ([\w-]+): written by `(.*)` -->", page.read_text(encoding="utf-8"))
    }
    assert places == {(section.page, section.name, section.command) for section in SECTIONS}


def test_a_section_is_replaced_and_nothing_else() -> None:
    page = Section("page.md", "one", "make one").replaced(PAGE, "new")
    begin, end = "<!-- one: written by `make one` -->\n", "<!-- one: end -->"
    assert page == PAGE.replace("before\n", "\n### Written by `make one`\n\nnew\n\n")
    assert page.partition(begin)[0] == PAGE.partition(begin)[0]
    assert page.partition(end)[2] == PAGE.partition(end)[2]


@pytest.mark.parametrize("missing", ["<!-- one: written by `make one` -->", "<!-- one: end -->"])
def test_a_page_without_the_section_is_refused(missing: str) -> None:
    with pytest.raises(ValueError, match=r"^page\.md has no lines"):
        Section("page.md", "one", "make one").replaced(PAGE.replace(missing, ""), "new")


def test_what_is_to_be_started_is_there() -> None:
    files = tracked("Makefile", "*.md", "bench/**/*.py", "bench/*.py")
    named = {name for path in files for name in STARTED.findall(path.read_text(encoding="utf-8"))}
    assert {"bench.cpu", "bench.service", "bench.gpu.check"} <= named
    for name in named:
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.submodule_search_locations is None or find_spec(f"{name}.__main__"), name
