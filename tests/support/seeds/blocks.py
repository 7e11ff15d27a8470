"""The code blocks of pages that document other systems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "seeds"


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of a page in a language."""
    text = (_FOLDER / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


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
