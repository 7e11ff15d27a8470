"""Notices ranks that ended, and ranks that hang."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence

from headrace_engine.ipc.messages import CoreFailed
from headrace_engine.process.rank_link import RankLink

_CHECKS = 10
"""Number of checks within the limit. They are counted instead of time: see `Heartbeat`."""

_LONGEST_POLL = 2**31 - 1
"""Milliseconds."""


_LOADING = 10
"""Times the limit for a rank that loads: its storage may be silent, as that of a core alone, which is waited for."""

_BUSY = 10
"""Times the limit for a rank that computes: one op, or one tensor, may take long."""


class Stall:
    """Counts the checks in which one rank does not get on."""

    def __init__(self) -> None:
        self._progress: int | None = None
        self._processor_time: int | None = None
        self._unmoved = self._idle = 0

    def note(self, answered: bool, processor_time: int, progress: int, patience: int = 1) -> int:
        """Note a check; return after how many times the limit the rank is lost, 0 if it is not.

        Args:
            answered: the rank is between two commands.
            processor_time: grows while any rank computes, for which it may wait, too.
            progress: grows while rank 0 gets on, for which it may wait.
            patience: times the limit in which it need do nothing; it may compute for _BUSY times as long.
        """
        moved = answered or progress != self._progress
        self._unmoved = 0 if moved else self._unmoved + 1
        self._idle = 0 if moved or processor_time != self._processor_time else self._idle + 1
        self._progress, self._processor_time = progress, processor_time
        if self._idle >= patience * _CHECKS:
            return patience
        return patience * _BUSY if self._unmoved >= patience * _BUSY * _CHECKS else 0


def watch(ranks: Sequence[RankLink], limit: float, progress: Callable[[], int]) -> CoreFailed:
    """Wait until a rank ends, or hangs; return what there is to report of it.

    A rank hangs that for the whole limit answers no ping, while no rank computes and rank 0 does not get on either: it
    may wait for any of them in an exchange. While one computes, and for one that loads, it is several times the limit.

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
        own, computed = progress(), sum(rank.processor_time for rank in ranks)
        checked = {rank.number: _checked(rank, stall, computed, own) for rank, stall in stalls.items()}
        hung = {number: times for number, times in checked.items() if times}
        if hung:
            return _lost(hung, limit)
    return by_descriptor[ended[0][0]].failure()


def _checked(rank: RankLink, stall: Stall, processor_time: int, progress: int) -> int:
    return stall.note(rank.ping(), processor_time, progress, 1 if rank.loaded else _LOADING)


def _lost(hung: Mapping[int, int], limit: float) -> CoreFailed:
    """Return the report of ranks that hang, by number, each after so many times the limit."""
    texts = []
    for times in sorted(set(hung.values())):
        numbers = [str(number) for number, after in hung.items() if after == times]
        which = f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)} of the model"
        named = "--core-ping-limit" if times == 1 else f"{times} times --core-ping-limit"
        texts.append(f"{which} made no progress for {times * limit:g} s ({named})")
    return CoreFailed("ENGINE_FAULT", "; ".join(texts))
