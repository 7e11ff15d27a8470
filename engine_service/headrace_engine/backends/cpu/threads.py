"""How many threads compute, where they run, and why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.backends.host import compute_threads, cpu_quota, one_of_each_core
from headrace_engine.errors import InvalidArgument

MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class ComputeThreads:
    """A choice.

    Attributes:
        count: threads.
        cpus: the logical processor of each; None: the system places them.
        reason: why so many, in words.
        nodes: the memory node of each, numbered from 0; None: which memory is whose makes no difference.
    """

    count: int
    cpus: tuple[int, ...] | None
    reason: str
    nodes: tuple[int, ...] | None = None


def choose_threads(asked: int, root: Path = Path("/"), affinity: frozenset[int] | None = None) -> ComputeThreads:
    """As many as are asked for, else one on each physical core within quota and affinity.

    They are pinned where they have all cores that this process may use to themselves: where there are fewer than
    cores, other processes may count on the same ones, and only the system knows which are free.

    Args:
        asked: 0: as many as make sense.
        affinity: logical processors that the process may run on; None: asked of the system.

    Raises:
        InvalidArgument: more are asked for than there may be.
    """
    if asked > MOST_THREADS:
        raise InvalidArgument.field("config.num_threads", f"= {asked} is out of range; allowed: 0 to {MOST_THREADS}")
    allowed = affinity if affinity is not None else frozenset(os.sched_getaffinity(0))
    cores = one_of_each_core(root, allowed)
    count = asked or min(MOST_THREADS, compute_threads(root, allowed))
    cpus = tuple(cores) if count == len(cores) else None
    return ComputeThreads(count, cpus, _reason(asked, count, len(cores), len(allowed), cpu_quota(root)))


def _reason(asked: int, count: int, cores: int, processors: int, quota: float | None) -> str:
    if asked:
        return f"num_threads = {asked}"
    found = f"{cores} physical cores of {processors} processors"
    return f"{found}, quota {quota:g}" if quota is not None and count < cores else found
