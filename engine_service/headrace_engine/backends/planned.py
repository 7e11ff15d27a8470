"""Opens the model of a plan."""

from __future__ import annotations

from headrace_engine.commands import CorePlan
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles


def open_planned(plan: CorePlan) -> ModelFiles:
    """Open the files that a plan names, with the vocabulary rows that it requests.

    Raises:
        BadModel: the files are not valid.
    """
    return open_model(
        plan.path,
        format=plan.format,
        file_prefix=plan.file_prefix,
        rope_scaling=plan.rope_scaling,
        vocab_size=plan.vocab_size,
    )
