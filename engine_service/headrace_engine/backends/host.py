"""Memory and CPU cores that this process may use, as control groups and affinity limit them.

Every function takes the root of the file system, which tests replace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


def memory_limit(root: Path = _ROOT) -> int:
    """Return the bytes that this process may use: the host's memory, or a smaller limit of its control groups."""
    limits = [host_memory(root)]
    for directory in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(directory / name)
            if text.isdecimal():
                limits.append(int(text))
    return min(limits)


def host_memory(root: Path = _ROOT) -> int:
    """Return the bytes of the host's memory."""
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemTotal")


def compute_threads(root: Path = _ROOT, affinity: frozenset[int] | None = None) -> int:
    """Return the number of threads that run at full speed: physical cores of the affinity within the quota, at least 1.

    Args:
        affinity: logical processors that the process may run on; None: query the system.
    """
    cpus = affinity if affinity is not None else frozenset(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    cores = len(one_of_each_core(root, cpus))
    return max(1, cores if quota is None else min(cores, int(quota)))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the CPU quota of the control groups, in processors; None: no limit."""
    quotas = [quota for directory in _cgroups(root, "cpu") for quota in _quotas(directory)]
    return min(quotas, default=None)


def _quotas(directory: Path) -> Iterator[float]:
    together = _read(directory / "cpu.max").split()
    apart = [_read(directory / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    for quota, period in (pair for pair in (together, apart) if len(pair) == 2):
        if quota.isdecimal() and period.isdecimal():
            yield int(quota) / int(period)


def one_of_each_core(root: Path, cpus: frozenset[int]) -> list[int]:
    """Return the first logical processor of each physical core; without topology data, all of them."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    first: dict[str, int] = {}
    for cpu in sorted(cpus):
        first.setdefault(_read(root / topology.format(cpu)) or str(cpu), cpu)
    return list(first.values())


def memory_nodes(root: Path, cpus: frozenset[int]) -> dict[int, frozenset[int]]:
    """Return those of `cpus` that belong to each memory node, by node number; nodes without any are left out.

    Without topology data, all belong to node 0.
    """
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    numbers = sorted(int(folder.name.removeprefix("node")) for folder in folders)
    lists = {number: _read(root / f"sys/devices/system/node/node{number}/cpulist") for number in numbers}
    found = {number: cpus & processors(text) for number, text in lists.items()}
    return {number: own for number, own in found.items() if own} or {0: cpus}


def processors(text: str) -> frozenset[int]:
    """Parse a list of numbers as the system writes it, such as "0-3,8"; empty if malformed."""
    if not _LIST.fullmatch(text):
        return frozenset()
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return frozenset(number for pair in ends for number in range(pair[0], pair[-1] + 1))


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of the control groups of this process, from its own up to the root of the mount.

    In a container the path may be the host's: missing directories read as empty.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = (controller,) if controllers else ("", "unified")
        inside = Path(path.lstrip("/"))
        inner = [] if ".." in inside.parts else [inside, *inside.parents]
        for mount in mounts:
            yield from (root / "sys/fs/cgroup" / mount / part for part in (*inner, Path()))


def _read(path: Path) -> str:
    """Return the stripped text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
