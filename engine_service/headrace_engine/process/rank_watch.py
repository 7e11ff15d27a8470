"""Notices ranks that ended, and ranks that hang."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence

from headrace_engine.ipc.messages import CoreFailed
from headrace_engine.process.rank_link import RankLink

_CHECKS = 10
"""Number of checks within the limit. They are counted instead of time: see `Heartbeat`."""

_LONGEST_POLL = 2**31 - 1
"""Milliseconds."""


class Stall:
    """Counts the checks in which one rank does nothing."""

    def __init__(self) -> None:
        self._progress: tuple[int, ...] = ()
        self._checks = 0

    def note(self, answered: bool, *progress: int) -> bool:
        """Note a check, and return True once as many in a row as the limit has found nothing.

        Args:
            answered: the rank is between two commands.
            progress: numbers that grow while it computes, and while others do that it may wait for.
        """
        idle = not answered and progress == self._progress
        self._checks = self._checks + 1 if idle else 0
        self._progress = progress
        return self._checks >= _CHECKS


def watch(ranks: Sequence[RankLink], limit: float, progress: Callable[[], int]) -> CoreFailed:
    """Wait until a rank ends, or hangs; return what there is to report of it.

    A rank hangs that for the whole limit answers no ping, which it does between two commands, and whose process uses no
    processor time meanwhile, while rank 0, for which it may wait in an exchange, does not get on either. So one that is
    slow to read, or to compute, is waited for.

    Args:
        limit: in seconds.
        progress: returns that of rank 0.
    """
    poll = select.poll()
    by_descriptor = {rank.descriptor: rank for rank in ranks}
    for descriptor in by_descriptor:
        poll.register(descriptor, 0)  # No events: a hang-up is always reported.
    stalls = {rank: Stall() for rank in ranks}
    while not (ended := poll.poll(min(1000 * limit / _CHECKS, _LONGEST_POLL))):
        own = progress()
        hung = [rank.number for rank, stall in stalls.items() if stall.note(rank.ping(), rank.processor_time, own)]
        if hung:
            which = f"rank{'s' * (len(hung) > 1)} {', '.join(map(str, hung))} of the model"
            return CoreFailed("ENGINE_FAULT", f"{which} made no progress for {limit:g} s (--core-ping-limit)")
    return by_descriptor[ended[0][0]].failure()
