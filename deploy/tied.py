"""Ties a process to its parent: it ends when the parent ends, however that ends, kill -9 included.

Usage: tied.py PARENT ARGUMENTS…: becomes `python ARGUMENTS…`, tied to its parent, whose process number is PARENT. The
tie outlives the exec. Linux.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie(parent: int, number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends; at once if it has already ended.

    Args:
        parent: process number of the parent. It counts as ended when the thread that started this process ends.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # It ended before the call.
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    tie(int(sys.argv[1]), signal.SIGKILL)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
