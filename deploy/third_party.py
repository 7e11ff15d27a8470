"""Prints the requirements of pyproject files, with the asked extras of Headrace's own distributions, one per line.

Image builds install these first, so that a change of our sources does not install them again.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def third_party(files: Sequence[Path]) -> list[str]:
    """Return the requirements of these pyproject files; of Headrace's own, those of the extras that are asked for."""
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    extras = {project["name"]: project.get("optional-dependencies", {}) for project in projects}
    lines = {line for project in projects for line in project["dependencies"]}
    own = {line for line in lines if re.match(r"headrace\b", line)}
    for line in own:
        name, asked = re.fullmatch(r"([\w-]+)(?:\[([\w,-]*)\])?.*", line).groups()  # type: ignore[union-attr]
        lines.update(*(extras.get(name, {}).get(extra, ()) for extra in (asked or "").split(",")))
    return sorted(lines - own)


if __name__ == "__main__":
    print("\n".join(third_party([Path(name) for name in sys.argv[1:]])))
