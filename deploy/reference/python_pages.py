"""The pages of the Python client, made from its docstrings by pdoc."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import pdoc
from pdoc import doc

_OTHERS = frozenset({"v1", "cli", "compat", "client", "aio"})
"""Modules without pages: generated code and the contract (docs/api/grpc.md), the command line, what the compatible APIs
share, and those whose names are the package's own."""

_DEFINED = doc.Class._taken_from


def modules() -> list[str]:
    """Return the names of the modules that have a page."""
    public = [found.name for found in pkgutil.iter_modules(headrace.__path__) if not found.name.startswith("_")]
    return ["headrace", *(f"headrace.{name}" for name in sorted(public) if name not in _OTHERS)]


def build(folder: Path) -> None:
    """Write the pages. They need no network to be read."""
    pdoc.render.configure(docformat="google", show_source=False, search=True)
    doc.Class._taken_from = _origin  # type: ignore[method-assign]
    with warnings.catch_warnings():
        # Fields of a TypedDict that it inherits have no place in a source file.
        warnings.filterwarnings("ignore", "Cannot determine where", UserWarning)
        pdoc.pdoc(*modules(), *_left_out(), output_directory=folder)


def _origin(self: doc.Class, member_name: str, obj: Any) -> tuple[str, str]:
    """Return where a member of a class is described: in the class that has it, or, if that has no page, in this one."""
    module, name = _DEFINED(self, member_name, obj)
    if any(part.startswith("_") for part in module.split(".")):
        return self.modulename, f"{self.qualname}.{member_name}"
    return module, name


def _left_out() -> Iterator[str]:
    yield from (f"!headrace.{name}" for name in sorted(_OTHERS))
