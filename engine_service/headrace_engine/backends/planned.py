"""Opens the model of a plan."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.backends.kv_size import length_limit
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles


def open_planned(plan: CorePlan) -> ModelFiles:
    """Open the files that a plan names, with the vocabulary rows and the maximum length that it requests.

    Raises:
        BadModel: the files are not valid.
        InvalidArgument: max_length exceeds the model's.
    """
    files = open_model(
        plan.path,
        format=plan.format,
        file_prefix=plan.file_prefix,
        rope_scaling=plan.rope_scaling,
        vocab_size=plan.vocab_size,
    )
    length = length_limit(plan, files.spec)
    ropes = tuple(replace(rope, length=length) for rope in files.spec.ropes)
    return replace(files, spec=replace(files.spec, ropes=ropes))
