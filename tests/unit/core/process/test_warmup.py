"""From a plan to a ready core: the order of events, the largest steps, and what failures are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from headrace_engine.core.failure import failure
from headrace_engine.core.link import LinkClosed
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.core.steps.executor import StepFailed
from headrace_engine.core.warmup import largest_steps, start_up
from headrace_engine.errors import BadModel, HeadraceError, InvalidArgument, OutOfMemory, Unavailable
from headrace_engine.ipc.commands import Shutdown
from headrace_engine.ipc.messages import CoreFailed, CoreMessage, CoreReady, RunnerSizes
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.model_types import ModelPhase, ModelProgress
from headrace_engine.process import run_core
from support.core.rig import ListLink
from support.core.simulated import SimulatedRunner, make_plan


def test_progress_is_told_in_order_and_ready_comes_last() -> None:
    link = ListLink()
    plan = make_plan()
    start_up(plan, SimulatedRunner(plan), link)
    phases = [message.phase for message in link.messages if isinstance(message, ModelProgress)]
    assert phases == [ModelPhase.LOADING] * 2 + [ModelPhase.ALLOCATING] + [ModelPhase.WARMING_UP] * 3
    ready = link.messages[-1]
    assert isinstance(ready, CoreReady)
    assert (ready.max_length, ready.num_blocks) == (64, 64)
    assert (ready.weight_bytes, ready.workspace_bytes, ready.kv_bytes) == (1, 2, 3)


def test_a_host_tier_is_allocated_and_tried_before_steps() -> None:
    """As much as runners copy in one piece, out and back; never a block that is not there."""
    for blocks in (1, 200):
        link, plan = ListLink(), make_plan(num_blocks=100, num_host_blocks=blocks)
        runner = SimulatedRunner(plan)
        start_up(plan, runner, link)
        [copies] = runner.copied
        assert len(copies.to_host) == len(copies.to_pool) == min(64, blocks)
        allocating = [message.bytes_total for message in link.messages[:-1] if message.phase is ModelPhase.ALLOCATING]
        assert allocating == [3 + 4 * blocks]
        ready = link.messages[-1]
        assert (ready.num_host_blocks, ready.host_kv_bytes) == (blocks, 4 * blocks)


def test_a_cut_link_ends_the_warm_up_before_the_next_step() -> None:
    """A core in a thread cannot be killed: it ends where it talks to its front half."""
    link, plan = ListLink(), make_plan()
    runner = CuttingRunner(plan, link)
    with pytest.raises(LinkClosed):
        start_up(plan, runner, link)
    assert len(runner.batches) == 1


class CuttingRunner(SimulatedRunner):
    """Its link is cut while it computes."""

    def __init__(self, plan: CorePlan, link: ListLink) -> None:
        super().__init__(plan)
        self._link = link

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        self._link.closed = True
        return super().run(steps)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 32),
        ({"max_batch": 1}, 32),
        ({"max_prefill_tokens": 1}, 1),
        ({"max_prefill_tokens": 10_000}, 256),
        ({"max_prefill_tokens": 10_000, "max_batch": 1}, 63),
        ({"max_prefill_tokens": 10_000, "max_batch": 4}, 4 * 63),
        ({"max_prefill_tokens": 10_000, "max_batch": 4, "num_blocks": 63}, 3 * 63 + 60),
        ({"num_blocks": 16}, 32),
        ({"num_blocks": 17, "max_prefill_tokens": 100}, 68),
        ({"num_blocks": 16, "max_batch": 100, "max_prefill_tokens": 200}, 64),
        ({"max_length": 2, "num_blocks": 1}, 1),
        ({"max_length": 5, "num_blocks": 2}, 8),
        ({"block_size": 1, "num_blocks": 64}, 32),
    ],
)
def test_the_warm_up_reaches_every_limit_and_breaks_none(changes: dict[str, Any], tokens: int) -> None:
    """The simulated runner refuses rows that are too long, tables that are too short, and shared writes."""
    plan = make_plan(**changes)
    runner = SimulatedRunner(plan)
    start_up(plan, runner, ListLink())
    assert max(sum(count for _, count in rows) for rows in runner.batches) == tokens
    assert max(map(len, runner.batches)) == min(plan.max_batch, plan.max_prefill_tokens, plan.num_blocks)
    assert max(start + count for rows in runner.batches for start, count in rows) == plan.max_length - 1


def test_a_runner_out_of_memory_warms_up_with_fewer_tokens() -> None:
    """The largest batch and the longest sequence are computed all the same."""
    plan = make_plan(max_length=400, max_prefill_tokens=1_000, num_blocks=500)
    runner = SimulatedRunner(plan)
    runner.takes_all_at_once = True
    start_up(plan, runner, ListLink())
    assert [sum(count for _, count in rows) for rows in runner.batches] == [128, 8, 1]
    assert max(start + count for rows in runner.batches for start, count in rows) == 399


def test_the_largest_batch_stands_at_its_greatest_length() -> None:
    plan = make_plan()
    sizes = SimulatedRunner(plan).size()
    _, batch, _ = largest_steps(plan, sizes, plan.max_prefill_tokens)
    assert [step.start + len(step.token_ids) for step in batch] == [63] * 8


class Small(SimulatedRunner):
    """Finds room for fewer blocks than the plan's max_length takes."""

    def size(self) -> RunnerSizes:
        self.plan = make_plan(num_blocks=15)
        return super().size()


def test_a_pool_below_max_length_is_blamed_on_caller_or_memory() -> None:
    chosen = make_plan(num_blocks=15)
    with pytest.raises(
        InvalidArgument, match=r"15 blocks of 4 tokens hold less than max_length 64\. Ask for 16"
    ) as caught:
        start_up(chosen, SimulatedRunner(chosen), ListLink())
    assert caught.value.violations[0].field == "num_blocks"
    with pytest.raises(OutOfMemory, match="takes 16 blocks: lower max_length"):
        start_up(make_plan(num_blocks=0), Small(make_plan()), ListLink())


def test_a_max_length_without_room_for_a_token_is_refused() -> None:
    plan = make_plan(max_length=1)
    with pytest.raises(InvalidArgument, match="max_length is 1"):
        start_up(plan, SimulatedRunner(plan), ListLink())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (BadModel("tensor x is missing"), CoreFailed("BAD_MODEL", "tensor x is missing")),
        (OutOfMemory("too large"), CoreFailed("OUT_OF_MEMORY", "too large")),
        (InvalidArgument.field("dtype", "is odd"), CoreFailed("INVALID_FIELD", "dtype is odd", "dtype")),
        (
            InvalidArgument.field("kv_cache_mode", "INT8", reason="NOT_SUPPORTED"),
            CoreFailed("NOT_SUPPORTED", "kv_cache_mode INT8", "kv_cache_mode"),
        ),
        (Unavailable("later"), CoreFailed("ENGINE_FAULT", "Unavailable: later")),
        (KeyError("x"), CoreFailed("ENGINE_FAULT", "KeyError: 'x'")),
        (StepFailed("RuntimeError: x"), CoreFailed("ENGINE_FAULT", "a step failed as a whole: RuntimeError: x")),
    ],
)
def test_failures_have_a_reason_that_says_whose_fault_it_is(error: Exception, message: CoreFailed) -> None:
    assert failure(error) == message


class Broken(SimulatedRunner):
    """Fails while it loads."""

    error: HeadraceError = BadModel("tensor x is missing")

    def load(self, progress: Any) -> None:
        raise self.error


def _run(plan: CorePlan, runner: SimulatedRunner) -> tuple[bool, list[CoreMessage]]:
    link = ListLink()
    link.commands.append(Shutdown())
    return run_core(plan, link, lambda _: runner), link.messages


def test_a_core_that_cannot_load_says_why_and_frees_what_it_has() -> None:
    runner = Broken(make_plan())
    succeeded, messages = _run(make_plan(), runner)
    assert not succeeded
    assert messages == [CoreFailed("BAD_MODEL", "tensor x is missing")]
    assert runner.closed


def test_a_core_that_is_shut_down_frees_everything() -> None:
    runner = SimulatedRunner(make_plan())
    succeeded, messages = _run(make_plan(), runner)
    assert succeeded
    assert isinstance(messages[-2], CoreReady)
    assert runner.closed


def test_a_core_says_that_it_started_before_it_serves() -> None:
    link, seen = ListLink(), []
    link.commands.append(Shutdown())
    assert run_core(make_plan(), link, SimulatedRunner, started=lambda: seen.append(list(link.messages)))
    (before,) = seen
    assert isinstance(before[-1], CoreReady)
    assert link.messages[: len(before)] == before


def test_a_core_losing_its_front_half_while_loading_frees_all() -> None:
    runner = SimulatedRunner(make_plan())
    link = ListLink()
    link.closed = True
    assert run_core(make_plan(), link, lambda _: runner)
    assert runner.closed


def test_an_unknown_backend_is_refused_by_name() -> None:
    link = ListLink()
    assert not run_core(make_plan(backend="abacus"), link)
    assert link.messages == [
        CoreFailed("INVALID_FIELD", 'backend is "abacus"; this build has: cpu, cuda, torch', "backend")
    ]
