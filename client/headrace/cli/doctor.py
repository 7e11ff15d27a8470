"""`headrace doctor`: what this machine can run, told by the engine that is installed on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.output import complain

PROGRAM = "headrace-engine"


def doctor(arguments: Sequence[str]) -> int:
    """Run `headrace-engine --doctor` with these arguments, and return its exit status.

    That of the environment in which this client is installed comes first, then that of the PATH.
    """
    program = shutil.which(PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(PROGRAM)
    if program is None:
        complain(f"the engine says what a machine can run, and {PROGRAM} is not installed on this one")
        return 1
    return subprocess.call([program, "--doctor", *arguments])
