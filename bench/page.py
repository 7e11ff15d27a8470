"""RESULTS.md: each command has a place of its own on that page, and replaces what it wrote there before."""

from __future__ import annotations

from pathlib import Path

_PAGE = Path(__file__).with_name("RESULTS.md")


def write_section(name: str, text: str, made_by: str = "", command: str = "") -> None:
    """Put text between the lines that begin with `<!-- name: ` on the page.

    Args:
        made_by: what `make bench-` goes on with, where that is not the name.
        command: that writes the section, where it is not `make bench-` at all.

    Raises:
        ValueError: the page has no such place.
    """
    command = command or f"make bench-{made_by or name}"
    before, begin, rest = _PAGE.read_text(encoding="utf-8").partition(f"<!-- {name}: written by `{command}` -->")
    _, end, after = rest.partition(f"<!-- {name}: end -->")
    if not (begin and end):
        raise ValueError(f"{_PAGE} has no place for {name}")
    _PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
