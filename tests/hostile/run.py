"""The attackers' process.

    python -m hostile.run ADDRESS ENGINE MODEL LENGTH SECONDS SEED KINDS FILE…

Each kind has a thread that attacks, waits for PAUSE seconds and attacks again. At the end one line of JSON says what
came of it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from hostile.attacks import KINDS, Mix

PAUSE = 0.5


def _attack(mix: Mix, kind: str, seed: int, end: float) -> None:
    chance = Random(f"{kind} {seed}")
    while time.monotonic() < end:
        try:
            KINDS[kind](mix, chance)
        except Exception as error:
            mix.defects.append(f"{kind}: {type(error).__name__}: {error}")
        mix.over.wait(PAUSE)


def _yield_to_servers() -> None:
    """Take the lowest priority: attackers have machines of their own, and compute nothing on that of the servers.

    Kernels that schedule sessions as groups compare priorities within a session only, so this becomes one of its own.
    """
    os.nice(19)
    os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


def main() -> None:
    """Attack until the time is over."""
    address, engine, model, length, seconds, seed, kinds, *files = sys.argv[1:]
    _yield_to_servers()
    mix = Mix(address, engine, model, int(length), files)
    end = time.monotonic() + float(seconds)
    threads = [threading.Thread(target=_attack, args=(mix, kind, int(seed), end)) for kind in kinds.split(",")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"seen": dict(sorted(mix.seen.items())), "defects": mix.defects}))


if __name__ == "__main__":
    main()
