"""Prints the requirements of pyproject files, except for Headrace's own distributions, one per line.

Image builds install these first, so that a change of our sources does not install them again.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def third_party(files: Sequence[Path]) -> list[str]:
    """Return the requirements of these pyproject files, without Headrace's own."""
    needed = {line for file in files for line in tomllib.loads(file.read_text())["project"]["dependencies"]}
    return sorted(line for line in needed if not re.match(r"headrace\b", line))


if __name__ == "__main__":
    print("\n".join(third_party([Path(name) for name in sys.argv[1:]])))
