"""What the Dockerfiles copy is in the build context."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LET_IN = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]


@pytest.mark.parametrize("file", sorted((ROOT / "deploy").glob("*.Dockerfile")), ids=lambda file: file.stem)
def test_what_an_image_copies_is_let_in(file: Path) -> None:
    lines = re.findall(r"^COPY (?!--from)(.+)$", file.read_text(), re.MULTILINE)
    copied = [path.rstrip("/") for line in lines for path in line.split()[:-1] if not path.startswith("--")]
    assert copied
    assert [path for path in copied if not any(map(partial(_holds, path), LET_IN))] == []


def _holds(path: str, let_in: str) -> bool:
    """A path that may be a pattern, such as wheel[s], which is copied if it is there."""
    return fnmatch(let_in, path) or path.startswith(f"{let_in}/")
