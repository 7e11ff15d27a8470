"""Ranks of one model in this process, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from headrace_engine.backends import torch
from headrace_engine.core.ranks import RankRunner, followed_steps, rank_step
from headrace_engine.core.runner import BlockCopies, Sampled, SequenceStep
from headrace_engine.ipc.messages import RunnerSizes
from headrace_engine.ipc.plans import CorePlan

from support.backends.rank_cases import REPORTING
from support.backends.runners import plan_for, ready, silent

_Result = TypeVar("_Result")


class Ranks:
    """All ranks of a plan, ready to run. A context manager, which closes them.

    Args:
        make: makes the runner of a rank.

    Attributes:
        sizes: those of each rank.
    """

    def __init__(self, plan: CorePlan, make: Callable[[CorePlan, int], RankRunner] = torch.make_rank) -> None:
        self._stack = ExitStack()
        count = plan.tensor_parallel
        self._pool = self._stack.enter_context(ThreadPoolExecutor(count))
        plan = replace(plan, num_threads=plan.num_threads or 1)
        self.runners = [self._stack.enter_context(closing(make(plan, rank))) for rank in range(count)]
        for runner in self.runners:
            runner.load(silent)
        place = self.runners[0].meet()
        self.all(lambda rank: rank.join(place))
        self.sizes: list[RunnerSizes] = self.all(lambda rank: rank.size())
        self.all(lambda rank: rank.allocate(self.sizes[0].num_blocks, self.sizes[0].num_host_blocks))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def all(self, call: Callable[[RankRunner], _Result]) -> list[_Result]:
        """Call all ranks at the same time."""
        return list(self._pool.map(call, self.runners))

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """Run a step on all ranks."""
        told = rank_step(steps)
        others = [self._pool.submit(rank.follow, followed_steps(told)) for rank in self.runners[1:]]
        sampled = self.runners[0].run(steps)
        for other in others:
            other.result()
        return sampled


def one_device(backend: ModuleType, path: Path, steps: list[list[SequenceStep]], **changes: Any) -> list[list[Sampled]]:
    """Return what one device gives for each step."""
    runner = ready(backend.make_runner(plan_for(path, **changes)))
    found = [runner.run(step) for step in steps]
    runner.close()
    return found


def on_ranks(
    backend: ModuleType, path: Path, steps: list[list[SequenceStep]], count: int, **changes: Any
) -> list[list[Sampled]]:
    """Return what so many ranks give for each step."""
    with Ranks(plan_for(path, tensor_parallel=count, **changes), backend.make_rank) as ranks:
        return [ranks.run(step) for step in steps]


def assert_rounded(found: list[list[Sampled]], expected: list[list[Sampled]]) -> None:
    """Assert that all that is reported differs by no more than rounding, and at least once by that."""
    pairs = [pair for each in zip(found, expected, strict=True) for pair in zip(*each, strict=True)]
    assert [one.token_id for one, _ in pairs] == [other.token_id for _, other in pairs]
    first, second = (
        np.array([value for each in side for value in (each.logprob, *dict(each.top).values())])
        for side in zip(*pairs, strict=True)
    )
    assert np.allclose(first, second, rtol=0, atol=1e-4)
    assert not np.array_equal(first, second)


def assert_likely(found: list[list[Sampled]], expected: list[list[Sampled]], within: float) -> None:
    """Assert that ids among the most likely of both have log-probabilities no further apart."""
    top = [[dict(row.top) for step in side for row in step] for side in (found, expected)]
    for one, other in zip(*top, strict=True):
        both = one.keys() & other.keys()
        assert all(abs(one[each] - other[each]) < within for each in both)
        assert len(both) > len(other) // 2


def copied_and_not(backend: ModuleType, path: Path, ids: list[int]) -> tuple[list[Sampled], list[Sampled]]:
    """Return the next token behind a block that went to the host tier and came back elsewhere, and before it went."""
    with Ranks(plan_for(path, tensor_parallel=2, num_blocks=64, num_host_blocks=4), backend.make_rank) as ranks:
        ranks.run([SequenceStep(ids[:16], 0, (0,))])
        expected = ranks.run([SequenceStep(ids[16:], 16, (0, 1), REPORTING)])
        out, back = BlockCopies(to_host=[(0, 3)]), BlockCopies(to_pool=[(3, 9)])
        for copies in (out, back):
            ranks.all(lambda rank, copies=copies: rank.copy_blocks(copies))  # type: ignore[misc]
        ranks.run([SequenceStep([5] * 16, 0, (0,))])
        return ranks.run([SequenceStep(ids[16:], 16, (9, 10), REPORTING)]), expected
