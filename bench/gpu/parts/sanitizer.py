"""The tests of the kernels under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping

from bench.gpu.kernel_tests import FOLDERS, arguments
from bench.gpu.library import ROOT

PROGRAM = "compute-sanitizer"
FILES = (
    "test_norm.py",
    "test_layer_norm.py",
    "test_logit_changes.py",
    *(f"test_device_{name}.py" for name in ("kv", "rows", "gates", "quantized", "attention", "sampling")),
)
"""Files with the tests that are run under each tool."""
LIMIT_S = 400.0
"""Seconds for one file under one tool."""


def installed() -> bool:
    """True if the program is on the path."""
    return shutil.which(PROGRAM) is not None


def checked(library: str, tool: str, file: str) -> Mapping[str, float]:
    """Run the tests of a file under a tool, in processes of their own; return how many passed.

    Args:
        library: library whose tests run, for pytest's -k: "cuda", "sim and forward".
        tool: "memcheck", "racecheck", "initcheck" or "synccheck".

    Raises:
        RuntimeError: a test failed, the tool found an error, or it timed out; contains the end of the output.
    """
    command = [PROGRAM, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
    command += [sys.executable, "-m", "pytest", *arguments(library, (file,))]
    env = {**os.environ, "PYTHONPATH": FOLDERS}
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, timeout=LIMIT_S, check=False, text=True, capture_output=True)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{tool} of {file} took longer than {LIMIT_S:.0f} s") from error
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode or passed is None:
        raise RuntimeError(f"status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return {"tests passed": float(passed[1])}
