"""A simulated runner with a draft model, which generates what the model does, but for a share of errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from headrace_engine.config import ModelFormat, Speculation
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.ipc.plans import CorePlan, DraftPlan

from support.core.rig import Rig
from support.core.simulated import VOCABULARY, SimulatedRunner

DRAFTING = {"speculation": Speculation.DRAFT, "draft": DraftPlan("simulated", ModelFormat.HF, 64)}
"""Fields of a plan with a draft model."""


class DraftRunner(SimulatedRunner):
    """Has a draft model with a pool of its own: what it draws depends on all that it reads back there.

    Attributes:
        small: computes the draft model's steps.
        errors: share of its ids that are replaced.
    """

    def __init__(self, plan: CorePlan) -> None:
        super().__init__(plan)
        assert plan.draft is not None
        self.small = SimulatedRunner(plan.of_draft(plan.draft))
        self.errors = 0.0
        self._random = Random(1)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        super().allocate(num_blocks, num_host_blocks)
        self.small.allocate(num_blocks)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        return [self._spoilt(sampled) for sampled in self.small.run(steps)]

    def _spoilt(self, sampled: Sampled) -> Sampled:
        wrong = self._random.random() < self.errors
        return replace(sampled, token_id=self._random.randrange(VOCABULARY)) if wrong else sampled


class DraftRig(Rig):
    """A rig whose runner has a draft model.

    Attributes:
        runner: a DraftRunner.
    """

    make_runner = DraftRunner
    runner: DraftRunner
