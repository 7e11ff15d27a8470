"""Runners of the cpu backend and of the simulated device, and sequences that are computed on either."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace_engine.backends import cpu
from headrace_engine.config import ComputeDtype, ComputeUnit, ModelFormat
from headrace_engine.core.runner import Runner, Sampled, SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.sampling_params import SamplingParams
from support.backends.runners import ready
from support.backends.same_tokens import TINY_MODEL, scores_agree
from support.sim import device as sim

SHAPE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
BLOCKS = 8
"""Of each sequence."""
GREEDY = SamplingParams(temperature=0, logprobs=True, top_logprobs=20)


def plan_for(path: Path, **changes: object) -> CorePlan:
    plan = CorePlan(
        str(path), ModelFormat.AUTO, num_threads=1, max_batch=5, max_length=128, max_prefill_tokens=160, num_blocks=48
    )
    return replace(plan, dtype=ComputeDtype.BFLOAT16, **changes)  # type: ignore[arg-type]


def on_cpu(plan: CorePlan) -> CorePlan:
    return replace(plan, compute_unit=ComputeUnit.CPU)


class Sequences:
    """Sequences of one runner, each with blocks of its own, in batches.

    Args:
        prompts: ids of each.
        chunk: ids of a prompt in one step.
        follow: what each goes on with, in place of what it draws.
        adapters: that of each; none given: none has one.
    """

    def __init__(
        self,
        runner: Runner,
        prompts: Sequence[Sequence[int]],
        chunk: int = 128,
        follow: Sequence[Sequence[int]] | None = None,
        adapters: Sequence[int] = (),
    ) -> None:
        self.runner = runner
        self.ids = [list(prompt) for prompt in prompts]
        self.drawn: list[list[Sampled]] = [[] for _ in prompts]
        self._done = [0] * len(prompts)
        self._chunk = chunk
        self._follow = follow
        self._adapters = adapters or [0] * len(prompts)

    def step(self, which: Sequence[int], sampling: SamplingParams = GREEDY) -> None:
        """Compute the next ids of some sequences together; those that have no more draw one."""
        steps = [self._share(number, sampling) for number in which]
        answers = iter(self.runner.run(steps))
        for number, step in zip(which, steps, strict=True):
            self._done[number] += len(step.token_ids)
            if step.sampling is not None:
                sampled = next(answers)
                assert sampled.token_id is not None, sampled.error
                forced = self._follow[number][len(self.drawn[number])] if self._follow else sampled.token_id
                self.drawn[number].append(sampled)
                self.ids[number].append(forced)

    def generate(self, tokens: int) -> None:
        """Step all of them until each has drawn so many."""
        while waiting := [number for number, drawn in enumerate(self.drawn) if len(drawn) < tokens]:
            self.step(waiting)

    def _share(self, number: int, sampling: SamplingParams) -> SequenceStep:
        ids, done = self.ids[number], self._done[number]
        share = ids[done : done + self._chunk]
        wanted = sampling if done + len(share) == len(ids) else None
        blocks = range(number * BLOCKS, (number + 1) * BLOCKS)
        adapter = self._adapters[number]
        return SequenceStep(
            share, done, blocks, wanted, position=len(self.drawn[number]), index=number, adapter=adapter
        )


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.choice([1, 5, 16, 17, 40]))] for _ in range(count)]


def compare_with_cpu(plan: CorePlan, seeds: int, tokens: int, chunk: int = 19) -> None:
    """Assert that after the ids of the cpu backend the scores are its own but for rounding, and the best is drawn."""
    reference, device = ready(cpu.make_runner(on_cpu(plan))), ready(sim.make_runner(plan))
    expected: list[Sampled] = []
    got: list[Sampled] = []
    for seed in range(seeds):
        leading = Sequences(reference, prompts(4, seed))
        leading.generate(tokens)
        follow = [[sampled.token_id or 0 for sampled in drawn] for drawn in leading.drawn]
        following = Sequences(device, prompts(4, seed), chunk=chunk, follow=follow)
        following.generate(tokens)
        for runs, drawn in ((expected, leading.drawn), (got, following.drawn)):
            runs += (sampled for each in drawn for sampled in each)
    scores_agree([sampled.top for sampled in expected], [sampled.top for sampled in got], TINY_MODEL)
    assert all(sampled.token_id == sampled.top[0][0] for sampled in got)
    assert len({sampled.token_id for sampled in got}) > seeds * tokens // 3, "the model says the same again and again"
