"""Runs one step of an installation: prints its name and duration, and keeps its output off stdout.

The command is ended when this process is asked to end, and when the parent, make, ends, however that ends. Linux.

Usage: step.py WORDS COMMAND…
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from terminal import Step, print_about
from tied import tie


def run(words: str, command: Sequence[str]) -> int:
    """Run a command with its standard output on stderr; return the exit status."""
    parent = os.getppid()
    with Step("headrace:", words) as step:
        process = subprocess.Popen(command, stdout=sys.stderr)

        def pass_on(number: int, frame: FrameType | None) -> None:
            process.send_signal(number)

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        signal.signal(signal.SIGINT, lambda *_: None)  # The terminal sends it to the command, too.
        tie(parent, signal.SIGTERM)
        status = process.wait()
    print_about("headrace:", f"{words}: {'done in' if status == 0 else 'failed after'} {step.seconds:.0f} s")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
