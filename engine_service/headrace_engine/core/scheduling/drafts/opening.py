"""Makes what drafts ids for a core, by its plan."""

from __future__ import annotations

from collections.abc import Callable

from headrace_engine.core.runner import Runner
from headrace_engine.core.scheduling.drafts.draft_model import DraftModel
from headrace_engine.core.scheduling.drafts.drafters import Drafter, drafter_for
from headrace_engine.core.scheduling.drafts.drafting import Drafting
from headrace_engine.core.scheduling.drafts.model_guesses import ModelGuesses
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.ipc.messages import RunnerSizes
from headrace_engine.ipc.plans import MOST_ROWS, CorePlan, DraftPlan


def open_drafting(
    plan: CorePlan,
    sizes: RunnerSizes,
    runner: Runner,
    costs: RowCosts,
    draft_costs: RowCosts | None,
    clock: Callable[[], float],
    drafter: Drafter | None = None,
) -> Drafting | None:
    """Return what drafts ids; None: nothing does.

    Args:
        costs: the time of steps with drafted ids.
        draft_costs: the time of the draft model's steps; None: unknown.
        drafter: source of drafted ids; None: as in the plan.
    """
    drafter = drafter or drafter_for(plan.speculation)
    if drafter is None:
        return None
    guesses = None
    if plan.draft is not None:
        model = _draft_model(plan.draft, plan, sizes, runner, draft_costs, clock)
        guesses = ModelGuesses(model, plan.max_drafts, costs, clock)
    return Drafting(drafter, plan.max_drafts, MOST_ROWS, costs, guesses, clock)


def _draft_model(
    draft: DraftPlan,
    plan: CorePlan,
    sizes: RunnerSizes,
    runner: Runner,
    costs: RowCosts | None,
    clock: Callable[[], float],
) -> DraftModel:
    length = min(draft.max_length, sizes.max_length)
    return DraftModel(runner.draft, plan.block_size, length, costs or RowCosts(), clock)
