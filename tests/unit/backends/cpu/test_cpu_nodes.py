"""Compute unit CPU_NUMA: which threads it has on which memory node, and that it computes what CPU does."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import torch
from headrace_engine.backends.cpu.nodes import choose_node_threads
from headrace_engine.config import ComputeDtype, ComputeUnit, WeightQuant
from headrace_engine.environment import CACHE_VARIABLE, ISA_VARIABLE, NODES_VARIABLE
from headrace_engine.errors import InvalidArgument
from headrace_engine.native import Isa, load, machine_isas
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.isa_levels import NAMES
from support.backends.torch_sequences import random_ids
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama


@pytest.fixture
def host(host):
    """A host of two memory nodes: processors 0 to 1 with their twins, and 2 to 3."""
    host("sys/devices/system/node/node0/cpulist", "0-1,4-5")
    host("sys/devices/system/node/node2/cpulist", "2-3,6-7")
    host("sys/devices/system/node/node3/cpulist", "")
    return host


def chosen(host, asked=0, nodes=(), cpus=range(8), environment=None):
    found = choose_node_threads(asked, nodes, host.root, frozenset(cpus), environment or {})
    assert found.count == len(found.cpus) == len(found.nodes)
    return found.cpus, found.nodes


def test_one_thread_on_each_physical_core_of_each_node(host):
    assert chosen(host) == ((0, 1, 2, 3), (0, 0, 1, 1))
    assert choose_node_threads(0, (), host.root, frozenset(range(8)), {}).reason == "2 on node 0; 2 on node 2"


def test_foreign_processors_and_empty_nodes_do_not_count(host):
    assert chosen(host, cpus=(1, 2, 3, 7)) == ((1, 2, 3), (0, 1, 1))
    assert chosen(host, cpus=(2, 7)) == ((2, 7), (0, 0))


def test_a_number_that_is_asked_for_is_dealt_out(host):
    assert chosen(host, 3) == ((0, 1, 2), (0, 0, 1))
    assert chosen(host, 6) == ((0, 1, 4, 2, 3, 6), (0, 0, 0, 1, 1, 1))


def test_a_quota_is_dealt_out(host):
    host("proc/self/cgroup", "0::/")
    host("sys/fs/cgroup/cpu.max", "300000 100000")
    assert chosen(host) == ((0, 1, 2), (0, 0, 1))
    host("sys/fs/cgroup/cpu.max", "100000 100000")
    with pytest.raises(InvalidArgument, match=r"CPU_NUMA takes a thread on each of 2 memory nodes.* allows 1: use CPU"):
        chosen(host)


def test_the_nodes_of_device_list_alone_are_used(host):
    assert chosen(host, nodes=(2,)) == ((2, 3), (0, 0))
    assert chosen(host, nodes=(2, 0)) == ((2, 3, 0, 1), (0, 0, 1, 1))
    with pytest.raises(InvalidArgument, match=r"device_list = \[3\] is out of range.*: 0, 2"):
        chosen(host, nodes=(3,))


def test_the_environment_may_name_the_nodes(host):
    assert chosen(host, environment={NODES_VARIABLE: "3;0-1"}) == ((3, 0, 1), (0, 1, 1))


@pytest.mark.parametrize("text", ["0;0", "0;8", "0-1;", "a", "0;1-", "1-0", "-1"])
def test_what_the_environment_says_has_to_make_sense(text, host):
    with pytest.raises(InvalidArgument, match=NODES_VARIABLE):
        chosen(host, environment={NODES_VARIABLE: text})


@pytest.mark.parametrize("asked", [1, 9])
def test_a_number_of_threads_must_fit_the_nodes(asked, host):
    with pytest.raises(InvalidArgument, match=f"num_threads = {asked} is out of range; allowed for 2 .* 2 to 8"):
        chosen(host, asked)


def test_where_the_system_does_not_tell_there_is_one_node(tmp_path):
    assert choose_node_threads(0, (), tmp_path, frozenset({1, 3}), {}).nodes == (0, 0)


@pytest.fixture
def two_nodes(monkeypatch, tmp_path):
    """Two processors of this machine as nodes of their own."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("this process may use one processor")
    monkeypatch.setenv(NODES_VARIABLE, f"{cpus[0]};{cpus[1]}")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return cpus[:2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Matrices of several tiles each, some of which no two nodes can share evenly."""
    sizes = {"hidden_size": 320, "intermediate_size": 200, "num_attention_heads": 5, "num_key_value_heads": 1}
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny", **sizes)


def logits(path, **changes):
    """After prompts of several lengths, in one batch, and after some ids more."""
    with cpu_model(path, **changes) as model:
        lanes = CpuLanes(model)
        mine = [lanes.add(random_ids(count, seed=count), new_tokens=8) for count in (1, 3, 40)]
        lanes.greedy(mine, 4)
        return model.cpu.nodes, torch.stack([scores for lane in mine for scores in lane.scores])


@pytest.mark.parametrize(
    "storage",
    [
        {"dtype": ComputeDtype.FLOAT32},
        {"dtype": ComputeDtype.BFLOAT16},
        {"weight_quant": WeightQuant.INT8},
        {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32},
    ],
    ids=str,
)
@pytest.mark.parametrize("isa", NAMES)
def test_two_nodes_compute_what_one_does_bit_for_bit(tiny, two_nodes, storage, isa, monkeypatch):
    if Isa[isa.upper()] not in machine_isas(load("cpu")):
        pytest.skip(f"this machine has no {isa}")
    monkeypatch.setenv(ISA_VARIABLE, isa)
    nodes, apart = logits(tiny, compute_unit=ComputeUnit.CPU_NUMA, **storage)
    assert nodes == 2
    _, together = logits(tiny, compute_unit=ComputeUnit.CPU, **storage)
    assert torch.equal(apart, together)


def test_weights_packed_for_one_node_serve_two_and_back(tiny, two_nodes, tmp_path):
    path = make_tiny_gguf(tmp_path / "tiny.gguf", tiny, "Q4_1")
    units = [ComputeUnit.CPU, ComputeUnit.CPU_NUMA, ComputeUnit.CPU_NUMA, ComputeUnit.CPU]
    found = [logits(path, compute_unit=unit)[1] for unit in units[:2]]
    (kept,) = (tmp_path / "cache" / "weights").iterdir()
    first = kept.read_bytes()
    kept.unlink()
    found += [logits(path, compute_unit=unit)[1] for unit in units[2:]]
    assert kept.read_bytes() == first
    assert all(torch.equal(found[0], other) for other in found)


def test_threads_are_pinned_to_nodes_and_the_caller_is_not(tiny, two_nodes):
    before = set(os.listdir("/proc/self/task"))
    with cpu_model(tiny, compute_unit=ComputeUnit.CPU_NUMA) as model:
        lanes = CpuLanes(model)
        lanes.greedy([lanes.add([1, 2, 3], new_tokens=4)], 2)
        assert {two_nodes[1]} in [_allowed(task) for task in set(os.listdir("/proc/self/task")) - before]
    assert os.sched_getaffinity(0) >= set(two_nodes)


def _allowed(task):
    """Where a thread may run; nowhere if it has ended meanwhile."""
    with suppress(ProcessLookupError):
        return os.sched_getaffinity(int(task))
    return set()
