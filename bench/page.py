"""RESULTS.md: each command that measures has a place of its own there, and replaces what it wrote before."""

from __future__ import annotations

import argparse
from pathlib import Path

_PAGE = Path(__file__).with_name("RESULTS.md")


def measurement(about: str | None) -> argparse.ArgumentParser:
    """Arguments of a command that measures and then writes, unless it is told not to (`write`).

    Args:
        about: what it measures, as its module says it.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave the files as they are")
    return parser


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
