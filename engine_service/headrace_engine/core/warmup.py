"""Brings a runner from a plan to readiness: load, size, allocate, warm up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice

from headrace_engine.config import Speculation
from headrace_engine.core.adapters import load_adapter
from headrace_engine.core.link import Link
from headrace_engine.core.row_fields import PromptIds
from headrace_engine.core.runner import BlockCopies, Runner, Sampled, SequenceStep
from headrace_engine.core.scheduling.pace import Pace
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.errors import InvalidArgument, OutOfMemory
from headrace_engine.ipc.messages import CoreReady, RunnerSizes
from headrace_engine.ipc.plans import MOST_ROWS, CorePlan
from headrace_engine.model_types import ModelPhase, ModelProgress
from headrace_engine.sampling_params import SamplingParams

_SAMPLING = SamplingParams(temperature=1.0, top_k=2, top_p=0.5, min_p=0.1, logprobs=True, top_logprobs=20)
"""Uses every feature of a sampler, so that nothing is left to be allocated or compiled later."""

_MAX_PROMPT_LOGPROBS = 64
"""Maximum number of prompt logprobs per row of the warm-up: more would reuse the same scratch buffer."""

_ENOUGH_TOKENS = 128
"""Maximum number of tokens per warm-up step, for runners that allocate nothing for more."""

_ROWS = 1, 2, 3, 4, 6, 8, 12, MOST_ROWS
"""Numbers of rows of decode steps that are timed for speculation."""

_TURNS = 3
"""Number of steps of each that are timed."""

_MAX_COPIES = 64
"""Maximum number of blocks that the warm-up copies: more would reuse the same scratch buffer."""


def start_up(
    plan: CorePlan,
    runner: Runner,
    link: Link,
    pace: Pace | None = None,
    clock: Callable[[], float] = time.perf_counter,
    costs: RowCosts | None = None,
    draft_costs: RowCosts | None = None,
) -> RunnerSizes:
    """Bring a runner from nothing to serving; report progress on the link, and finally readiness.

    Args:
        pace: receives measured step times.
        clock: seconds, for these measurements.
        costs: receives the times of steps with drafted ids, if the plan has any.
        draft_costs: receives the times of the draft model's steps, if the plan has one.

    Raises:
        HeadraceError: the model, the plan or the memory does not allow it.
        LinkClosed: the front half is gone.
    """
    runner.load(lambda phase, done, total: link.send(ModelProgress(phase, done, total)))
    sizes = runner.size()
    _check_sizes(plan, sizes)
    link.send(ModelProgress(ModelPhase.ALLOCATING, 0, sizes.kv_bytes + sizes.host_kv_bytes))
    runner.allocate(sizes.num_blocks, sizes.num_host_blocks)
    if sizes.num_host_blocks:
        runner.copy_blocks(_some_copies(sizes))
    for steps in largest_steps(plan, sizes, _ENOUGH_TOKENS if runner.takes_all_at_once else plan.max_prefill_tokens):
        link.send(ModelProgress(ModelPhase.WARMING_UP))  # Before each: a link that was cut ends the warm-up here.
        runner.run(steps)
    if pace is not None and pace.active:
        _measure(plan, sizes, runner, pace, clock)
    if costs is not None and plan.speculation is not Speculation.OFF:
        costs.start(_time_by_rows(plan, sizes.max_length, runner.run, clock))
    if draft_costs is not None and plan.draft is not None:
        draft_costs.start(_time_by_rows(plan, min(plan.draft.max_length, sizes.max_length), runner.draft, clock))
    lost = _load_adapters(plan, runner)
    ready = CoreReady(
        **asdict(sizes),
        max_batch=plan.max_batch,
        max_prefill_tokens=plan.max_prefill_tokens,
        idle_processors=dict(runner.idle_processors),
        lost_adapters=lost,
    )
    link.send(ready)
    return sizes


def _load_adapters(plan: CorePlan, runner: Runner) -> dict[int, str]:
    """Load the plan's adapters; return why some could not be, by number."""
    errors = {adapter.number: load_adapter(runner, adapter) for adapter in plan.adapters}
    return {number: error for number, error in errors.items() if error}


def largest_steps(plan: CorePlan, sizes: RunnerSizes, most_tokens: int) -> Iterator[list[SequenceStep]]:
    """Yield the steps that take the most memory: most tokens, most sequences, and the end of the longest sequence.

    With as many tokens as the plan allows, nothing larger can be scheduled later. Rows may share the blocks that they
    read, as with a cached prefix, but each writes to its own.

    Args:
        most_tokens: maximum number of tokens in the step of prompts.
    """
    yield _most_tokens(plan, sizes, min(most_tokens, plan.max_prefill_tokens))
    yield _most_sequences(plan, sizes)
    longest = sizes.max_length - 1  # The last token of a sequence is never computed.
    yield [_row(longest - 1, 1, tuple(range(_blocks_for(longest, plan))))]


def _measure(plan: CorePlan, sizes: RunnerSizes, runner: Runner, pace: Pace, clock: Callable[[], float]) -> None:
    """Measure a chunk of a prompt and a single decoded token, so that the first real prompt is already paced."""
    count = min(_ENOUGH_TOKENS, plan.max_prefill_tokens, sizes.max_length - 1)
    for generating, ids in ((0, count), (1, 1)):
        began = clock()
        runner.run([SequenceStep((0,) * ids, 0, tuple(range(_blocks_for(ids, plan))), SamplingParams(temperature=0))])
        pace.note(generating, [] if generating else [(0, ids)], clock() - began)


def _time_by_rows(
    plan: CorePlan,
    max_length: int,
    run: Callable[[Sequence[SequenceStep]], list[Sampled]],
    clock: Callable[[], float],
) -> dict[int, float]:
    """Return the seconds of a decode step by its number of rows, the shortest of a few, taken in turns."""
    block, seconds = (0,), dict[int, float]()
    longest = min(plan.block_size, plan.max_prefill_tokens, max_length - 1)
    for _ in range(_TURNS):
        for rows in (count for count in _ROWS if count <= longest):
            steps = [SequenceStep((0,), start, block, SamplingParams(temperature=0)) for start in range(rows)]
            began = clock()
            run(steps)
            seconds[rows] = min(seconds.get(rows, math.inf), clock() - began)
    return seconds


def _most_tokens(plan: CorePlan, sizes: RunnerSizes, budget: int) -> list[SequenceStep]:
    """Return a step of `budget` tokens, or as many as batch and pool can hold, at the ends of long sequences."""
    longest = sizes.max_length - 1
    whole, rest = divmod(longest, plan.block_size)
    blocks = iter(range(sizes.num_blocks))
    # If the pool is the limit, full blocks hold the most tokens: only `spare` rows may add a partly filled one.
    spare = sizes.num_blocks - plan.max_batch * whole
    rows: list[SequenceStep] = []
    for i in range(plan.max_batch):
        table = tuple(islice(blocks, whole + (rest > 0 and i < spare)))
        end = min(longest, len(table) * plan.block_size)
        count = min(end, budget)
        if not count:
            break
        rows.append(_row(end - count, count, table))
        budget -= count
    return rows


def _most_sequences(plan: CorePlan, sizes: RunnerSizes) -> list[SequenceStep]:
    """Return a decode step of as many sequences as may run, on one prefix as long as the pool allows."""
    count = min(plan.max_batch, plan.max_prefill_tokens, sizes.num_blocks)
    shared = min(_blocks_for(sizes.max_length - 1, plan) - 1, sizes.num_blocks - count)
    length = min(sizes.max_length - 1, (shared + 1) * plan.block_size)
    return [_row(length - 1, 1, (*range(shared), shared + i)) for i in range(count)]


def _some_copies(sizes: RunnerSizes) -> BlockCopies:
    """Return copies of empty blocks to the host tier and back."""
    pairs = [(block, block) for block in range(min(_MAX_COPIES, sizes.num_blocks, sizes.num_host_blocks))]
    return BlockCopies(pairs, pairs)


def _row(start: int, count: int, blocks: tuple[int, ...]) -> SequenceStep:
    return SequenceStep(
        token_ids=(0,) * count,
        start=start,
        blocks=blocks,
        sampling=_SAMPLING,
        masked_ids=(1,),
        prompt_logprobs=PromptIds(0, (0,) * min(count, _MAX_PROMPT_LOGPROBS), _SAMPLING.top_logprobs),
        tensors=True,
        pooled=0,
    )


def _blocks_for(tokens: int, plan: CorePlan) -> int:
    return -(-tokens // plan.block_size)


def _check_sizes(plan: CorePlan, sizes: RunnerSizes) -> None:
    """Check that a sequence of max_length can run alone.

    Raises:
        InvalidArgument: max_length or num_blocks is too small.
        OutOfMemory: the pool that fits in memory is too small.
    """
    if sizes.max_length < 2:
        raise InvalidArgument.field("max_length", f"is {sizes.max_length}: a prompt token and a generated one take 2")
    needed = _blocks_for(sizes.max_length, plan)
    if sizes.num_blocks >= needed:
        return
    what = f"{sizes.num_blocks} blocks of {plan.block_size} tokens hold less than max_length {sizes.max_length}"
    if plan.num_blocks:
        raise InvalidArgument.field("num_blocks", f"is too small: {what}. Ask for {needed}, or lower max_length")
    raise OutOfMemory(f"{what}, which takes {needed} blocks: lower max_length")
