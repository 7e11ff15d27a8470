"""The page about tools tells of every format."""

from __future__ import annotations

import re
from pathlib import Path

from headrace_proto.pure.answers.formats import CALLS

PAGE = Path(__file__).parents[4] / "docs" / "tools.md"


def test_the_page_names_every_format() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| format |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(CALLS)
