"""Threads on memory nodes: with CPU_NUMA, each node's threads compute with the weights in its memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from headrace_engine.backends.cpu.threads import MAX_THREADS, ComputeThreads
from headrace_engine.backends.host import cpu_quota, memory_nodes, one_of_each_core, processors
from headrace_engine.environment import NODES_VARIABLE, Environment, named_nodes
from headrace_engine.errors import InvalidArgument

MAX_NODES = 64

Nodes = Mapping[int, frozenset[int]]
"""Usable logical processors by memory node number; none is empty."""


def choose_node_threads(
    requested: int,
    device_list: Sequence[int] = (),
    root: Path = Path("/"),
    affinity: frozenset[int] | None = None,
    environment: Environment = os.environ,
) -> ComputeThreads:
    """Choose the requested number of threads, else one per physical core within the quota.

    They are assigned to the nodes round robin, each pinned to a processor of its node.

    Args:
        requested: number of threads; 0: choose.
        device_list: numbers of the nodes; empty: all with processors for this process.
        affinity: logical processors that the process may run on; None: query the system.

    Raises:
        InvalidArgument: a node does not exist, or there are fewer threads than nodes, or fewer processors than threads.
    """
    allowed = affinity if affinity is not None else frozenset(os.sched_getaffinity(0))
    nodes = _chosen(find_nodes(root, allowed, environment), device_list)
    processors_of = {number: _processors(root, cpus) for number, cpus in nodes.items()}
    cores = sum(len(one_of_each_core(root, cpus)) for cpus in nodes.values())
    quota = cpu_quota(root)
    count = requested or min(cores, MAX_THREADS, cores if quota is None else max(1, int(quota)))
    _check_count(count, len(nodes), sum(map(len, processors_of.values())), requested)
    dealt = [
        (node, cpu)
        for round_ in zip_longest(*processors_of.values())
        for node, cpu in enumerate(round_)
        if cpu is not None
    ][:count]
    dealt.sort(key=lambda pair: pair[0])
    text = "; ".join(
        f"{sum(node == index for node, _ in dealt)} on node {number}" for index, number in enumerate(nodes)
    )
    return ComputeThreads(count, tuple(cpu for _, cpu in dealt), text, tuple(node for node, _ in dealt))


def find_nodes(root: Path, allowed: frozenset[int], environment: Environment = os.environ) -> Nodes:
    """Return the nodes with processors for this process, from the environment variable if set, else from the system.

    Raises:
        InvalidArgument: the environment variable is malformed.
    """
    text = named_nodes(environment)
    if not text:
        return memory_nodes(root, allowed)
    named = [processors(part) for part in text.split(";")]
    listed = list(chain.from_iterable(named))
    if not all(named) or len(set(listed)) != len(listed) or not allowed.issuperset(listed):
        description = f'= "{text}" in the environment: expected lists of this process\'s processors, as in "0-3;4-7"'
        raise InvalidArgument.field(NODES_VARIABLE, description)
    return dict(enumerate(named))


def _chosen(nodes: Nodes, device_list: Sequence[int]) -> Nodes:
    unknown = [number for number in device_list if number not in nodes]
    if unknown or len(nodes) > MAX_NODES:
        known = ", ".join(map(str, nodes))
        text = f"= {list(device_list)} is out of range; memory nodes with processors for this process: {known}"
        raise InvalidArgument.field("config.device_list", text)
    return {number: nodes[number] for number in device_list} if device_list else nodes


def _processors(root: Path, cpus: frozenset[int]) -> list[int]:
    """Return processors in order of assignment: one of each core first, then the others."""
    first = one_of_each_core(root, cpus)
    return [*first, *sorted(cpus.difference(first))]


def _check_count(count: int, nodes: int, largest: int, requested: int) -> None:
    if requested and not nodes <= requested <= largest:
        text = f"= {requested} is out of range; allowed for {nodes} memory nodes: {nodes} to {largest}"
        raise InvalidArgument.field("config.num_threads", text)
    if count < nodes:
        text = f"= CPU_NUMA takes a thread on each of {nodes} memory nodes, and the quota allows {count}: use CPU"
        raise InvalidArgument.field("config.compute_unit", text)
