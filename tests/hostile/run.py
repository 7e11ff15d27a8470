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


def main() -> None:
    """Attack until the time is over."""
    address, engine, model, length, seconds, seed, kinds, *files = sys.argv[1:]
    os.nice(19)  # Attackers have machines of their own: what they compute must not take from the servers.
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
