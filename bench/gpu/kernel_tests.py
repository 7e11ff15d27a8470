"""The tests of the kernels, for machines that have pytest and nothing else of the project's tools."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bench.gpu.library import ROOT

FOLDER = ROOT / "tests" / "native"
FOLDERS = os.pathsep.join(str(ROOT / name) for name in ("proto", "engine_service", "tests", "."))
"""What Python's module path needs."""
WHICH = {"cuda": "cuda", "sim": "sim and not reverse and not random"}
"""For pytest's -k, by device: on the simulated one, one order of its threads."""
_OTHERS = ("test_norm.py", "test_layer_norm.py", "test_sampling.py", "test_logit_changes.py")


def files() -> list[str]:
    """Return the names of the files with tests of kernels."""
    return [file.name for pattern in ("test_device_*.py", *_OTHERS) for file in sorted(FOLDER.rglob(pattern))]


def arguments(which: str, names: Sequence[str]) -> list[str]:
    """Return pytest's arguments for testing a library without the project's plugins and settings.

    Args:
        which: an expression for pytest's -k, such as those of WHICH.
        names: names of files.
    """
    paths = [str(next(FOLDER.rglob(name))) for name in names]
    settings = ["-q", "-k", which, "-p", "no:cacheprovider", "-c", os.devnull, "--color=no", "--no-header"]
    # The first failures say enough: an illegal address fails all tests behind it.
    short = ["--maxfail=3", "--tb=short", "--disable-warnings"]
    return [*settings, *short, f"--rootdir={FOLDER}", f"--confcutdir={FOLDER}", *paths]
