"""Ranks of one model in this process, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TypeVar

from headrace_engine.backends import torch
from headrace_engine.core.ranks import RankRunner, followed_steps, rank_step
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.ipc.messages import RunnerSizes
from headrace_engine.ipc.plans import CorePlan

from support.backends.runners import silent

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
