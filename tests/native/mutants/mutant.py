"""A fault planted into the kernels, by an exact replacement of text, and the test that must catch it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RACE = r"cusim: a race in block"
CROOKED = r"cusim: .* is not aligned to \d+ bytes"
WRONG = r"^E +(AssertionError|assert)|^(abort|segmentation fault)$"
"""A test's own words, or the end of a process that read or wrote where it must not before the test could say so."""


@dataclass(frozen=True)
class Mutant:
    """A planted fault.

    Attributes:
        name: unique.
        file: source or header in csrc/.
        old, new: the text of the file that is replaced, which it holds once, and what it becomes.
        breaks: what a card would do.
        test: the test that fails, in tests/native.
        seen: pattern of what the failing run says.
        cases: cases of the test, for pytest's -k: the fewest that see it.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    test: str
    seen: str
    cases: str = "forward"

    def planted(self, sources: Path) -> str:
        """Return the changed text of the file.

        Args:
            sources: the folder csrc.

        Raises:
            ValueError: the file does not hold the text once.
        """
        text = (sources / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} holds the replaced text {count} times, and not once")
        return text.replace(self.old, self.new)
