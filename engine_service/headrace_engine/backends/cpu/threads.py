"""Chooses the number of compute threads and their processors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.backends.host import compute_threads, cpu_quota, one_of_each_core
from headrace_engine.errors import InvalidArgument

MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class ComputeThreads:
    """The chosen compute threads.

    Attributes:
        count: number of threads.
        cpus: logical processor that each is pinned to; None: not pinned.
        reason: explanation for the log.
        nodes: memory node of each, numbered from 0; None: all on one.
    """

    count: int
    cpus: tuple[int, ...] | None
    reason: str
    nodes: tuple[int, ...] | None = None


def choose_threads(requested: int, root: Path = Path("/"), affinity: frozenset[int] | None = None) -> ComputeThreads:
    """Choose the requested number of threads, else one per physical core within quota and affinity.

    They are pinned only if they occupy all cores that this process may use. With fewer threads, pinning might choose
    cores that other processes use; the system knows which are free.

    Args:
        requested: number of threads; 0: choose.
        affinity: logical processors that the process may run on; None: query the system.

    Raises:
        InvalidArgument: more than MAX_THREADS are requested.
    """
    if requested > MAX_THREADS:
        raise InvalidArgument.field("config.num_threads", f"= {requested} is out of range; allowed: 0 to {MAX_THREADS}")
    allowed = affinity if affinity is not None else frozenset(os.sched_getaffinity(0))
    cores = one_of_each_core(root, allowed)
    count = requested or min(MAX_THREADS, compute_threads(root, allowed))
    cpus = tuple(cores) if count == len(cores) else None
    return ComputeThreads(count, cpus, _reason(requested, count, len(cores), len(allowed), cpu_quota(root)))


def _reason(requested: int, count: int, cores: int, processors: int, quota: float | None) -> str:
    if requested:
        return f"num_threads = {requested}"
    found = f"{cores} physical cores of {processors} processors"
    return f"{found}, quota {quota:g}" if quota is not None and count < cores else found
