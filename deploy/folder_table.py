"""Write the table of folders in ARCHITECTURE.md, from the first line of each package's docstring (`make folders`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
PRODUCT = ("proto/headrace_proto", "client/headrace", "gateway/headrace_gateway", "engine_service/headrace_engine")
_TABLE = re.compile(r"(?<=<!-- folders -->\n).*(?=<!-- /folders -->)", re.DOTALL)


def folders() -> Iterator[Path]:
    """Yield the packages of the product, without generated code."""
    for part in PRODUCT:
        yield from sorted(path.parent for path in (ROOT / part).rglob("__init__.py") if path.parent.name != "v1")


def with_table(page: str) -> str:
    """Return the page with the table of today's folders.

    Raises:
        ValueError: the page has no marks for a table.
    """
    table = "\n".join(("| folder | |", "|---|---|", *map(_row, folders()))) + "\n"
    page, found = _TABLE.subn(lambda _: table, page)
    if not found:
        raise ValueError("there is no table between <!-- folders --> and <!-- /folders -->")
    return page


def _row(folder: Path) -> str:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return f"| `{folder.relative_to(ROOT).as_posix()}/` | {text.splitlines()[0]} |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
