"""What became of each step of a check: a file of JSON each, written as soon as it is known."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Ending = Literal["passed", "failed", "too long", "left out"]

_WRITING = ".writing"
_SUFFIX = ".step.json"


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Attributes:
        step: its name.
        ending: "too long": it was killed at its limit; "left out": it did not begin.
        seconds: how long it took.
        figures: what it found.
        error: why it did not pass, in few lines.
        card: name of the card; "" if it is not known.
        code: digest of the code that ran.
        date: "2026-11-28 14:00 UTC".
    """

    step: str
    ending: Ending
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    card: str = ""
    code: str = ""
    date: str = ""


class Kept:
    """A folder of outcomes. A process that ends at any time leaves whole files.

    Args:
        folder: made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, outcome: Outcome) -> None:
        """Write an outcome, in place of an earlier one of the step.

        Raises:
            OSError: it cannot be written; the earlier one is still there.
        """
        name = outcome.step.replace(":", "-").replace(" ", "-") + _SUFFIX
        self.write(name, json.dumps(asdict(outcome), indent=1) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        writing = self.folder / _WRITING
        with writing.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        writing.replace(self.folder / name)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def read(self) -> dict[str, Outcome]:
        """Return all outcomes by step; files that are none are passed over."""
        found = {}
        for path in sorted(self.folder.glob("*" + _SUFFIX)):
            try:
                outcome = Outcome(**json.loads(path.read_text(encoding="utf-8")))
            except (OSError, TypeError, ValueError):
                continue
            found[outcome.step] = outcome
        return found
