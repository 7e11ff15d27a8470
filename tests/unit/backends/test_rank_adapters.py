"""Adapters on ranks, each of which holds the factors of what it holds of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from headrace_engine.backends import cpu
from headrace_engine.backends import torch as torch_backend
from headrace_engine.config import TensorParallelMode
from headrace_engine.core.runner import Runner, Sampled, SequenceStep
from headrace_engine.ipc.plans import AdapterPlan
from headrace_engine.models.catalogue import open_model
from support.backends.rank_cases import MODELS, steps_of
from support.backends.ranks import Ranks, assert_rounded
from support.backends.runners import plan_for, ready
from support.backends.torch_sequences import random_ids
from support.models.tiny_adapters import adapter_plan, make_tiny_adapter

ROOM = {"lora_max_num": 2, "lora_max_rank": 9}
NAMES = ["llama", "odd sizes", "olmo2", "phi3"]
"""Models with padded heads, with a norm of all heads, and whose files join matrices."""


@pytest.fixture(params=[cpu, torch_backend], ids=["cpu", "torch"])
def backend(request: pytest.FixtureRequest) -> ModuleType:
    """Each backend that has ranks."""
    module: ModuleType = request.param
    return module


def adapted_model(name: str, folder: Path) -> tuple[Path, list[AdapterPlan]]:
    """A model, and two adapters of different ranks for it."""
    make, settings = MODELS[name]
    path = make(folder / "model", **settings)
    made = [
        make_tiny_adapter(folder / "a", path, seed=1, target_modules="all-linear"),
        make_tiny_adapter(folder / "b", path, seed=2, r=9, target_modules="all-linear"),
    ]
    spec = open_model(str(path)).spec
    return path, [adapter_plan(number, adapter, spec) for number, adapter in enumerate(made, 1)]


def adapted_steps(seed: int) -> list[list[SequenceStep]]:
    """Steps whose two sequences name an adapter each, after a step in which none does."""
    steps = steps_of(random_ids(46, seed))
    return [[replace(row, adapter=1 + row.blocks[0] // 4) for row in step] for step in steps] + steps[:1]


def on_one_device(
    backend: ModuleType, path: Path, plans: Sequence[AdapterPlan], steps: list[list[SequenceStep]]
) -> list[list[Sampled]]:
    runner: Runner = ready(backend.make_runner(plan_for(path, **ROOM)))
    for plan in plans:
        runner.read_adapter(plan)()
    found = [runner.run(step) for step in steps]
    runner.close()
    return found


def on_ranks(
    backend: ModuleType, path: Path, plans: Sequence[AdapterPlan], steps: list[list[SequenceStep]], **changes: Any
) -> list[list[Sampled]]:
    with Ranks(plan_for(path, tensor_parallel=2, **ROOM, **changes), backend.make_rank) as ranks:
        for plan in plans:
            ranks.all(lambda rank, plan=plan: rank.read_adapter(plan)())  # type: ignore[misc]
        return [ranks.run(step) for step in steps]


@pytest.mark.parametrize("name", NAMES)
def test_adapters_on_ranks_have_the_bits_of_one_device(
    name: str, backend: ModuleType, tmp_path: Path, memory: Any
) -> None:
    path, plans = adapted_model(name, tmp_path)
    steps = adapted_steps(1)
    found = on_ranks(backend, path, plans, steps)
    assert found == on_one_device(backend, path, plans, steps)
    assert found[0] != found[-1]


@pytest.mark.parametrize("name", NAMES)
def test_adapters_on_reduced_ranks_differ_by_rounding(
    name: str, backend: ModuleType, tmp_path: Path, memory: Any
) -> None:
    path, plans = adapted_model(name, tmp_path)
    steps = adapted_steps(2)
    found = on_ranks(backend, path, plans, steps, tensor_parallel_mode=TensorParallelMode.REDUCED)
    assert_rounded(found, on_one_device(backend, path, plans, steps))


def test_each_rank_sets_room_aside_for_its_share(backend: ModuleType, tiny_llama: Path, memory: Any) -> None:
    """Half of all but what is whole: in EXACT a of each matrix."""

    def room(**changes: Any) -> int:
        sizes = []
        for more in ({}, ROOM):
            with Ranks(plan_for(tiny_llama, tensor_parallel=2, **more, **changes), backend.make_rank) as ranks:
                sizes.append(ranks.sizes[1].weight_bytes)
        return sizes[1] - sizes[0]

    whole = [ready(backend.make_runner(plan_for(tiny_llama, **more))) for more in ({}, ROOM)]
    first, second = (runner.size().weight_bytes for runner in whole)
    for runner in whole:
        runner.close()
    one = second - first
    assert one // 2 < room() < one
    assert room(tensor_parallel_mode=TensorParallelMode.REDUCED) < room()
