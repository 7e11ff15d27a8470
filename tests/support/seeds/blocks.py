"""The code blocks of pages that document other systems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

_FOLDER = Path(__file__).parents[2] / "seeds"


def text_of(page: str) -> str:
    """Return a page as published."""
    return (_FOLDER / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of a page in a language, without their indentation: fences of Markdown, directives of rst."""
    text = text_of(page)
    if page.endswith(".rst"):
        found = re.findall(rf"^\.\. code-block:: {language}\n\n((?:(?:  .*)?\n)+)", text, re.MULTILINE)
        return [dedent(block).strip() + "\n" for block in found]
    fence = rf"^(?P<indent> *)```{language}\n(?P<block>.*?)^(?P=indent)```"
    return [dedent(match["block"]) for match in re.finditer(fence, text, re.MULTILINE | re.DOTALL)]


def adapted(block: str, replacements: Mapping[str, str]) -> str:
    """Return a block with replacements, after checking that nothing else changed: undone, they give the block again."""
    changed = block
    for before, after in replacements.items():
        assert after not in changed, f"{after} could not be told from what was there"
        changed = changed.replace(before, after)
    restored = changed
    for before, after in reversed(replacements.items()):
        restored = restored.replace(after, before)
    assert restored == block
    return changed
