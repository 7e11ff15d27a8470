"""Prints the requirements of pyproject files, with the asked extras of Headrace's own distributions, one per line.

Image builds install these first, so that a change of our sources does not install them again. A file may be followed by
extras of its own, as in gateway/pyproject.toml[otel].
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def third_party(files: Sequence[str]) -> list[str]:
    """Return the requirements of these pyproject files; of Headrace's own, those of the extras that are asked for.

    Raises:
        ValueError: a file has no such extra.
    """
    projects, lines = [], set[str]()
    for name in files:
        file, _, asked = name.removesuffix("]").partition("[")
        project = tomllib.loads(Path(file).read_text())["project"]
        projects.append(project)
        lines.update(project["dependencies"])
        for extra in filter(None, asked.split(",")):
            if extra not in project.get("optional-dependencies", {}):
                raise ValueError(f"{file} has no extra {extra}")
            lines.update(project["optional-dependencies"][extra])
    extras = {project["name"]: project.get("optional-dependencies", {}) for project in projects}
    own = {line for line in lines if re.match(r"headrace\b", line)}
    for line in own:
        name, asked = re.fullmatch(r"([\w-]+)(?:\[([\w,-]*)\])?.*", line).groups()  # type: ignore[union-attr]
        lines.update(*(extras.get(name, {}).get(extra, ()) for extra in (asked or "").split(",")))
    return sorted(lines - own)


if __name__ == "__main__":
    print("\n".join(third_party(sys.argv[1:])))
