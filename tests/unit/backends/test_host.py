"""What the host grants: control groups of both versions, affinity, physical cores, and the environment."""

from __future__ import annotations

import pytest
from headrace_engine.backends.host import compute_threads, cpu_quota, memory_limit

GIB = 2**30


@pytest.fixture
def host(host):
    """A host of 8 GiB, in no control group."""
    host("proc/meminfo", f"MemTotal:       {8 * GIB // 1024} kB\nMemFree:        1024 kB")
    return host


def threads(host, cpus=range(8)):
    return compute_threads(host.root, frozenset(cpus))


def test_without_cgroups_all_memory_and_physical_cores_count(host):
    assert memory_limit(host.root) == 8 * GIB
    assert cpu_quota(host.root) is None
    assert threads(host) == 4


def test_bc200_version_2_limits(host):
    host("proc/self/cgroup", "0::/box")
    host("sys/fs/cgroup/box/memory.max", str(3 * GIB))
    host("sys/fs/cgroup/box/cpu.max", "250000 100000")
    assert memory_limit(host.root) == 3 * GIB
    assert cpu_quota(host.root) == 2.5
    assert threads(host) == 2


def test_bc200_version_1_limits(host):
    host("proc/self/cgroup", "4:memory:/box\n1:cpu,cpuacct:/box")
    host("sys/fs/cgroup/memory/box/memory.limit_in_bytes", str(3 * GIB))
    host("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000")
    host("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000")
    assert memory_limit(host.root) == 3 * GIB
    assert threads(host) == 3


def test_no_limit_is_written_as_max_minus_1_or_a_huge_number(host):
    host("proc/self/cgroup", "4:memory:/\n1:cpu:/\n0::/")
    host("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    host("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    host("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    host("sys/fs/cgroup/memory.max", "max")
    host("sys/fs/cgroup/cpu.max", "max 100000")
    assert memory_limit(host.root) == 8 * GIB
    assert threads(host) == 4


def test_the_tightest_group_above_counts(host):
    host("proc/self/cgroup", "0::/slice/box")
    host("sys/fs/cgroup/slice/box/memory.max", "max")
    host("sys/fs/cgroup/slice/memory.max", str(2 * GIB))
    host("sys/fs/cgroup/slice/box/cpu.max", "400000 100000")
    host("sys/fs/cgroup/slice/cpu.max", "100000 100000")
    assert memory_limit(host.root) == 2 * GIB
    assert threads(host) == 1


@pytest.mark.parametrize("path", ["/docker/0123", "/../../elsewhere"])
def test_in_a_container_the_mount_itself_is_the_group(host, path):
    """The path is one of the host's and leads nowhere here."""
    host("proc/self/cgroup", f"0::{path}")
    host("sys/fs/cgroup/memory.max", str(GIB))
    host("sys/fs/cgroup/cpu.max", "200000 100000")
    assert memory_limit(host.root) == GIB
    assert threads(host) == 2


def test_bc200_a_quota_below_one_processor_leaves_one_thread(host):
    host("proc/self/cgroup", "0::/")
    host("sys/fs/cgroup/cpu.max", "50000 100000")
    assert threads(host) == 1


def test_affinity_counts_cores_not_processors(host):
    assert threads(host, [0, 4]) == 1
    assert threads(host, [0, 1, 5]) == 2


def test_bc209_with_hidden_topology_each_processor_counts(host):
    assert threads(host, [20, 21, 22]) == 3


def test_this_machine_can_be_probed():
    assert memory_limit() > 2**20
    assert compute_threads() >= 1
