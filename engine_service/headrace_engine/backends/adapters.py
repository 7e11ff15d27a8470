"""Adapters, as far as backends have them in common."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from headrace_engine.errors import BadModel, Internal
from headrace_engine.ipc.plans import AdapterPlan
from headrace_engine.models.adapters.adapter import AdapterFiles, content_digest, may_change
from headrace_engine.models.adapters.opening import open_adapter
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.tensor_shapes import expected_shapes

Adapters = TypeVar("Adapters")


def open_planned_adapter(plan: AdapterPlan, spec: DecoderSpec) -> AdapterFiles:
    """Open the adapter of a plan.

    Raises:
        BadModel: its files have changed since the plan was made, or do not fit.
    """
    files = open_adapter(Path(plan.path), spec)
    if files.rank != plan.rank or content_digest(files) != plan.digest:
        raise BadModel(f"{files.path.name}: has changed since it was loaded; unload the adapter, and load it again")
    return files


def required(adapters: Adapters | None) -> Adapters:
    """Return a backend's adapters.

    Raises:
        Internal: the plan has no room for any.
    """
    if adapters is None:
        raise Internal("an adapter for a plan without room for any")
    return adapters


def matrix_shapes(spec: DecoderSpec, head_dim: int) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of all matrices that adapters may change, by canonical name.

    Args:
        head_dim: entries of a head, with the backend's padding.
    """
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
    found = {}
    for name, shape in expected_shapes(spec).items():
        if not may_change(name, spec):
            continue
        part = name.rpartition(".")[2]
        outputs, inputs = shape
        if part in heads:
            outputs = heads[part] * head_dim
        found[name] = outputs, spec.num_heads * head_dim if part == "o" else inputs
    return found
