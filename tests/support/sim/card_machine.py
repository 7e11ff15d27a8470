"""A machine with a card, as Python sees it: what the measurements need, what that requires, and nothing else."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

NEEDED = ("torch", "numpy", "pytest", "transformers")
OURS = ("bench", "conftest", "headrace_engine", "headrace_proto", "native", "support")

_HOOK = """
import sys

class Without:
    # A finder that finds nothing of what is not there.
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if path is None and top not in ALLOWED and not top.startswith(("test_", "_sysconfigdata")):
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def only_needed(folder: Path, without: Iterable[str] = ()) -> dict[str, str]:
    """Return an environment in which Python imports what such a machine has, in all processes.

    Args:
        folder: for the hook that does it.
        without: packages that are missing there too.
    """
    of_needed = {name for needed in NEEDED for name in _required(needed, set())}
    tops = {top for top, owners in metadata.packages_distributions().items() if of_needed & set(map(_plain, owners))}
    allowed = {*sys.stdlib_module_names, *sys.builtin_module_names, *OURS, *tops} - set(without)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"ALLOWED = {sorted(allowed)!r}\n{_HOOK}", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _required(name: str, known: set[str]) -> set[str]:
    """Add a distribution to those that are known, and all that it requires without extras and that is here."""
    if _plain(name) in known:
        return known
    try:
        required = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return known
    known.add(_plain(name))
    for one in required:
        if "extra ==" not in one:
            _required(re.split(r"[^\w.-]", one, maxsplit=1)[0], known)
    return known


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
