"""How many threads compute, and where."""

from __future__ import annotations

import pytest
from headrace_engine.backends.cpu.threads import choose_threads
from headrace_engine.backends.host import one_of_each_core
from headrace_engine.errors import InvalidArgument


def chosen(host, asked=0, cpus=range(8)):
    found = choose_threads(asked, host.root, frozenset(cpus))
    return found.count, found.cpus, found.reason


def test_one_thread_on_each_physical_core(host):
    assert chosen(host) == (4, (0, 1, 2, 3), "4 physical cores of 8 processors")
    assert chosen(host, cpus=(2, 5, 6)) == (2, (2, 5), "2 physical cores of 3 processors")


def test_a_quota_leaves_the_places_to_the_system(host):
    """Others may count on the same processors."""
    host("proc/self/cgroup", "0::/")
    host("sys/fs/cgroup/cpu.max", "250000 100000")
    assert chosen(host) == (2, None, "4 physical cores of 8 processors, quota 2.5")


def test_a_quota_above_the_cores_changes_nothing(host):
    host("proc/self/cgroup", "0::/")
    host("sys/fs/cgroup/cpu.max", "900000 100000")
    assert chosen(host) == (4, (0, 1, 2, 3), "4 physical cores of 8 processors")


@pytest.mark.parametrize(("asked", "cpus"), [(1, None), (4, (0, 1, 2, 3)), (8, None)])
def test_a_number_that_is_asked_for_is_taken(asked, cpus, host):
    assert chosen(host, asked) == (asked, cpus, f"num_threads = {asked}")


def test_more_than_there_may_be_are_refused(host):
    with pytest.raises(InvalidArgument, match=r"num_threads = 1025 is out of range; allowed: 0 to 1024"):
        chosen(host, 1025)


def test_where_the_system_does_not_tell_each_processor_is_a_core(tmp_path):
    assert one_of_each_core(tmp_path, frozenset({3, 1})) == [1, 3]
