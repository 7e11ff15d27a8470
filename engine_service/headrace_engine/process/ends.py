"""How processes of an engine end: together with the one that started them, and in words."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

_PR_SET_PDEATHSIG = 1


def tie_to_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, even while it is stopped. Linux."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def end_with(descriptor: int, ended: threading.Event, limit: float) -> None:
    """Have this process end when the one at the other end of a socket is gone, in a thread of its own.

    Args:
        ended: set when this process ends by itself.
        limit: seconds that it gets for that, e.g. inside a kernel.
    """
    threading.Thread(target=_watch, args=(descriptor, ended, limit), name="orphan-watch", daemon=True).start()


def _watch(descriptor: int, ended: threading.Event, limit: float) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # No events: a hang-up is always reported.
    poll.poll()
    if not ended.wait(limit):
        os._exit(1)


def manner(returncode: int | None) -> str:
    """Describe how a process ended."""
    if returncode is None:
        return "did not end when it was killed: its device or file system may hang"
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"
