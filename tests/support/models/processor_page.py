"""The examples of docs/logits-processors.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs/logits-processors.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def example(name: str, folder: Path) -> Path:
    """Write an example to a file."""
    (text,) = (block for block in blocks({".py": "python", ".cu": "cuda"}[Path(name).suffix]) if name in block[:20])
    path = folder / name
    path.write_text(text)
    return path
